//! A fence, and a commit in the wrong place, in PostgreSQL and MariaDB. `scripts/databases` installs them.

mod mariadb;
mod postgres;
mod verified;
mod waiting;

#[path = "../fence/cases.rs"]
mod cases;
