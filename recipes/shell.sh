# Functions of all shell scripts of the recipes; source it.
set -euo pipefail

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# quoted COMMAND...: print the command in one line, quoted for the shell.
quoted() {
    local line
    printf -v line '%q ' "$@"
    printf '%s' "${line% }"
}
