# Install every wheel of a folder into /opt/vllm; nothing is fetched and nothing is left over.
# $1: folder with wheels, and with a requirements.txt in hash mode where one was locked.
set -eu
wheels=$1
# On the file system of the target, so that files are linked into place and written once.
export UV_CACHE_DIR=/opt/.uv
if [ -f "$wheels/requirements.txt" ]; then
    set -- --require-hashes --requirements "$wheels/requirements.txt"
else
    set -- "$wheels"/*.whl
fi
/mnt/tools/uv pip install --quiet --no-config --offline --no-index --find-links "$wheels" --no-deps \
    --only-binary :all: --link-mode hardlink --python /opt/vllm/bin/python "$@"
rm -rf "$UV_CACHE_DIR" /opt/vllm/.lock
# uv notes when the wheel's file was changed, which is another moment in every build.
for note in /opt/vllm/lib/python3.11/site-packages/*.dist-info/uv_cache.json; do
    [ -f "$note" ] || continue
    rm "$note"
    sed -i '/\/uv_cache\.json,/d' "${note%/*}/RECORD"
done
