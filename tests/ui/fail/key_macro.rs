use lock_runtime::key;

fn main() {
    let id = 1;
    let _ = key!("order:<id>", name = 2);
    let _ = key!("order:<ids[0]>");
    let _ = key!("order:{id}", id = id);
    let _ = key!("order:<id><id>");
    let _ = key!();
    let _ = key!("order:<id>", id = 1, id = 2);
    let _ = id;
}
