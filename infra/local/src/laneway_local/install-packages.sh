#!/bin/sh
# Installs Debian/Ubuntu packages without letting them start their default services.
#
#   install-packages.sh rabbitmq-server postgresql mosquitto
#
# Needs root or sudo without a password; otherwise it prints one line that names what to install, and exits 1.
# The Makefile uses it before there is a virtual environment, laneway_local afterwards.
set -eu

[ $# -gt 0 ] || { echo "usage: $0 PACKAGE..." >&2; exit 2; }

if ! command -v apt-get >/dev/null 2>&1; then
    echo "Missing: $*. There is no apt-get here; install them with your package manager and try again." >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    if sudo -n true >/dev/null 2>&1; then
        exec sudo -n sh "$0" "$@"
    fi
    echo "Missing packages; please run: sudo apt-get install -y $*" >&2
    exit 1
fi

POLICY=/usr/sbin/policy-rc.d
CLUSTERS=/etc/postgresql-common/createcluster.d
NO_CLUSTER=$CLUSTERS/laneway-local.conf
MARK="# temporary, by laneway-local"
LOG=$(mktemp)

restore() {
    if grep -qsF "$MARK" "$POLICY"; then rm -f "$POLICY"; fi
    rm -f "$NO_CLUSTER" "$LOG"
}
trap restore EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

if [ ! -e "$POLICY" ]; then
    printf '#!/bin/sh\n%s\nexit 101\n' "$MARK" >"$POLICY"
    chmod 755 "$POLICY"
fi
mkdir -p "$CLUSTERS"
echo "create_main_cluster = false" >"$NO_CLUSTER"

install() {
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
        -o DPkg::Lock::Timeout=120 -o Dpkg::Options::=--force-confold "$@" >"$LOG" 2>&1 </dev/null
}

echo "Installing $* ..."
if ! install "$@"; then
    # most often the package lists are missing or too old
    apt-get update -q >/dev/null 2>&1 || true
    if ! install "$@"; then
        echo "Could not install $*: $(grep -E '^E:' "$LOG" | tail -n 1)" >&2
        exit 1
    fi
fi

# Not at the next boot either: by systemctl where systemd runs, by the links themselves where it doesn't.
disable() {
    systemctl disable "$1" >/dev/null 2>&1 || deb-systemd-helper disable "$1" >/dev/null 2>&1 || true
    update-rc.d "${1%.*}" disable >/dev/null 2>&1 || true
}
for package in "$@"; do
    case $package in
        rabbitmq-server) units="rabbitmq-server.service epmd.socket epmd.service" ;;
        postgresql) units="postgresql.service" ;;
        mosquitto) units="mosquitto.service" ;;
        *) units="" ;;
    esac
    for unit in $units; do disable "$unit"; done
done
