# The scripts source this file. It installs programs with the package manager of the system, and parts of Rust with rustup,
# and says how the project is built.

# The arguments of all builds of the whole project. Commands with the same packages and features share what they build. The
# feature `testing` of lock-runtime is left out, because it replaces the clock.
all_packages=(--locked --workspace --features lock-runtime/sqlx,lockctl/etcd,lockctl/postgres,lockctl/serve,lockctl/tui)

# test_with_switches ARGUMENT...: `cargo test` in the build with switchable safeguards. Cargo calls the wrapper only for the
# packages of the project, so the dependencies are those of all other builds.
test_with_switches() {
  local target=${CARGO_TARGET_DIR:-target}
  CARGO_BUILD_BUILD_DIR=$target RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/rustc-with-switches \
    cargo test "${all_packages[@]}" --target-dir "$target/controls" "$@"
}

# test_races: the models of races, in the build with a scheduler. They need no store of a server. To optimize lock-runtime takes
# less time than it saves.
test_races() {
  RUSTFLAGS="${RUSTFLAGS:-} --cfg lock_shuttle" \
    cargo test --locked --target-dir target/shuttle --config 'profile.dev.package.lock-runtime.opt-level=1' \
    -p lock-runtime --no-default-features --lib models
}

say() { printf '\n== %s\n' "$*"; }

# need PROGRAM PURPOSE APT DNF PACMAN APK BREW: the packages that have the program, or - for none.
need() {
  local program=$1 purpose=$2 apt=$3 dnf=$4 pacman=$5 apk=$6 brew=$7 install=''
  command -v "$program" >/dev/null && return
  if command -v apt-get >/dev/null && [ "$apt" != - ]; then
    install="apt-get update && apt-get install -y --no-install-recommends $apt"
  elif command -v dnf >/dev/null && [ "$dnf" != - ]; then
    install="dnf install -y $dnf"
  elif command -v pacman >/dev/null && [ "$pacman" != - ]; then
    install="pacman -S --noconfirm $pacman"
  elif command -v apk >/dev/null && [ "$apk" != - ]; then
    install="apk add $apk"
  elif command -v brew >/dev/null && [ "$brew" != - ]; then
    install="brew install $brew"
  else
    echo "$purpose $program. Install it, and run this script again." >&2
    exit 1
  fi
  say "Installing $program: $install"
  if [ "${install%% *}" = brew ] || [ "$(id -u)" -eq 0 ]; then
    sh -c "$install"
  elif sudo -n true 2>/dev/null; then
    sudo sh -c "$install"
  else
    printf '%s %s, and installing it needs root permissions. Run this command, and then this script again:\n\n  sudo sh -c "%s"\n\n' \
      "$purpose" "$program" "$install" >&2
    exit 1
  fi
}

# need_component COMPONENT PROGRAM: the part of Rust that has the program.
need_component() {
  "$2" --version >/dev/null 2>&1 && return
  say "Installing $1"
  rustup component add "$1" || {
    echo "The checks need $1, which is not installed and could not be added with rustup. Install it, and run this script again." >&2
    exit 1
  }
}
