# Install every wheel of a folder into /opt/vllm and compile its modules; nothing is fetched and nothing is left over.
# $1: folder with wheels, and with a requirements.txt in hash mode where one was locked.
set -eu
site=/opt/vllm/lib/python3.11/site-packages
# On the file system of the target, so that files are linked into place and written once.
export UV_CACHE_DIR=/opt/.uv
if [ -f "$1/requirements.txt" ]; then
    set -- "$1" --require-hashes --requirements "$1/requirements.txt"
else
    set -- "$1" "$1"/*.whl
fi
wheels=$1
shift
/mnt/tools/uv pip install --quiet --no-config --offline --no-index --find-links "$wheels" --no-deps --only-binary :all: \
    --link-mode hardlink --python /opt/vllm/bin/python "$@"
rm -rf "$UV_CACHE_DIR"
# Compiled modules carry their source's hash, not its time: the same bytes in every build, and a file that is
# changed later is compiled anew. What fails is Python of another version, shipped as data.
/opt/vllm/bin/python -I -m compileall -q --invalidation-mode checked-hash "$site" >/dev/null || true
