#!/bin/bash
# Installs bubblewrap for the sandboxes (as root, on Debian and Ubuntu), and what the example about mathematics needs.
set -euo pipefail
command -v bwrap >/dev/null || apt-get install -y bubblewrap
exec "$(dirname "$0")/../rtx5090-math/setup.sh"
