#!/bin/bash
# Installs bubblewrap for the sandboxes (with sudo where not root, on Debian and Ubuntu), and what the example about mathematics needs.
set -euo pipefail
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
command -v bwrap >/dev/null || "${as_root[@]}" apt-get install -y bubblewrap
exec "$(dirname "$0")/../rtx5090-math/setup.sh"
