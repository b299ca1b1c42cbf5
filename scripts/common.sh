# The scripts source this file. It says how the project is built and tested, installs programs with the package manager of the
# system and parts of Rust with rustup, and prints what took how long.

# The arguments of all builds of the whole project. Commands with the same packages and features share what they build. For the
# simulated network, the library can follow the clock of a test.
features=lock-runtime/sqlx,lockctl/etcd,lockctl/postgres,lockctl/serve,lockctl/tui
all_packages=(--locked --workspace --features "$features,lock-tests/simulation")

# Nothing but the changed packages is built again, so what would make their next build faster only takes time and space.
export CARGO_INCREMENTAL=0

# The number of tests of a program that run at the same time. Most tests spend their time waiting.
threads=12

# A safeguard is switched off for a control only.
unset LOCK_WITHOUT

# What the script has done: `step`, `test` or `passed`, a number, and a name.
record=
began=$SECONDS
failed=()
beside_id=

say() { printf '\n== %s\n' "$*"; }

clean_up() {
  [ -z "$beside_id" ] || kill "$beside_id" 2>/dev/null || true
  rm -rf "$record"
}

# begin: makes the folder of the records, unless there is one.
begin() {
  [ -z "$record" ] || return 0
  record=$(mktemp -d)
  trap clean_up EXIT
}

# step NAME COMMAND...: runs a command, and ends the script if it fails.
step() {
  attempt "$@"
  [ ${#failed[@]} -eq 0 ] || finish
}

# attempt NAME COMMAND...: runs a command, or a function whose last command alone can fail. If it fails, the script goes on, and
# fails at its end.
attempt() {
  local name=$1 from=$SECONDS
  shift
  begin
  say "$name"
  "$@" 2>&1 | tee "$record/printed" || failed+=("$name")
  note "$name" $((SECONDS - from)) "$record/printed"
}

# beside NAME COMMAND...: begins to run a command that computes, at a lower priority, beside tests that measure time. `collect`
# waits for it, and shows its output. (On a busy machine, the lowest priority would be no time at all.)
beside() {
  beside_name=$1 beside_from=$SECONDS
  shift
  begin
  # The tests begin first: Cargo builds for one command at a time.
  (sleep 5 && exec nice -n 10 "$@") >"$record/beside" 2>&1 </dev/null &
  beside_id=$!
}

collect() {
  say "$beside_name (beside what is above)"
  wait "$beside_id" || failed+=("$beside_name")
  beside_id=
  cat "$record/beside"
  note "$beside_name" $((SECONDS - beside_from)) "$record/beside"
}

# note NAME SECONDS FILE: records a step, and the tests in what it has printed.
note() {
  echo "step $2 $1" >>"$record/all"
  sed -nE 's/^test (.*) \.\.\. [A-Za-z]+ <([0-9.]+)s>$/test \2 \1/p; s/^test result: [A-Za-z]+\. ([0-9]+) passed.*/passed \1/p' \
    "$3" >"$record/tests"
  if grep -q '^passed ' "$record/tests" && ! grep -q '^passed [1-9]' "$record/tests"; then
    failed+=("$1: no test has run")
  fi
  cat "$record/tests" >>"$record/all"
}

# finish: prints what took longest, and whether everything passed.
finish() {
  say 'The slowest steps and tests, in seconds'
  local kind passed took=$((SECONDS - began))
  for kind in step test; do
    grep "^$kind " "$record/all" | cut -d ' ' -f 2- | sort -rn | head -n 10 || true
  done
  passed=$(awk '$1 == "passed" { sum += $2 } END { print sum + 0 }' "$record/all")
  took="$((took / 60)) min $((took % 60)) s"
  if [ ${#failed[@]} -eq 0 ]; then
    say "Everything passed: $passed tests in $took."
    exit
  fi
  say "Failed after $took, with $passed tests passed:"
  printf '   %s\n' "${failed[@]}"
  exit 1
}

# with_switches COMMAND...: runs Cargo for the build that all tests share. The safeguards of lock-runtime have switches in it,
# which negative controls use (`lock-core/src/safeguard.rs`), so that nothing is built twice. Cargo calls the wrapper only for
# the packages of the project.
with_switches() { RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/rustc-with-switches "$@"; }

# run_tests ARGUMENT...: runs test programs without their controls, also if one of them fails.
run_tests() {
  local arguments=()
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    arguments+=("$1")
    shift
  done
  [ $# -eq 0 ] || shift
  run_all "${arguments[@]}" -- --skip controls --test-threads "$threads" "$@"
}

# run_controls ARGUMENT...: runs the negative controls of test programs.
run_controls() { run_all "$@" -- --test-threads "$threads" controls; }

# run_all ARGUMENT...: runs test programs with their controls.
run_all() {
  with_switches cargo --config "target.'cfg(all())'.runner = ['$PWD/scripts/with-times']" \
    test --no-fail-fast "${all_packages[@]}" "$@"
}

# add_server_folders: where Debian and Fedora keep the programs of servers.
add_server_folders() {
  local folder
  for folder in /usr/lib/postgresql/*/bin /usr/sbin /usr/libexec; do
    PATH=$PATH:$folder
  done
}

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

# need_redis: the server that almost all tests start.
need_redis() { need redis-server 'The tests need' redis-server redis redis redis redis; }

# need_component COMPONENT PROGRAM: the part of Rust that has the program.
need_component() {
  "$2" --version >/dev/null 2>&1 && return
  say "Installing $1"
  rustup component add "$1" || {
    echo "The checks need $1, which is not installed and could not be added with rustup. Install it, and run this script again." >&2
    exit 1
  }
}
