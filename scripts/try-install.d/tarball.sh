#!/usr/bin/env bash
# What scripts/release makes: twice, the same bytes; the checksums hold; on a machine that boots the lines
# of docs/INSTALL.md for the tarball work, and so do those of its own INSTALL for systemd.
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=booted.bash
source "$ROOT/scripts/try-install.d/booted.bash"

command -v dpkg-deb >/dev/null || skip "there is no dpkg-deb to make the package with"
release_files
# Later, elsewhere, with another umask.
(umask 077 && cd / && TMPDIR="$TRY_DIR" nice -n 10 "$ROOT/scripts/release" --binary "$ATTUNE_BIN" --out "$TRY_DIR/again" >/dev/null)
for file in "$TRY_DIR"/shared/*; do
    cmp "$file" "$TRY_DIR/again/${file##*/}" || die "two runs of scripts/release differ in ${file##*/}"
done
(cd "$TRY_DIR/shared" && sha256sum --check --strict SHA256SUMS) | sed 's/^/    /'
say "two runs made the same bytes"

tar -C "$TRY_DIR" -xzf "$TRY_DIR"/shared/attune-*.tar.gz
folder="$(echo "$TRY_DIR"/attune-*-x86_64-linux-gnu)"
[[ -z "$(find "$folder" ! -user "$(id -un)" -o -perm /022)" ]] || die "others may write to what was unpacked"
sed -n 1p "$folder/INSTALL" | sed 's/^/    /'
cd "$folder"
for file in attune INSTALL LICENSE attune.yaml systemd/attune.target man/attune.1 completions/attune.bash; do
    [[ -s $file ]] || die "the tarball has no $file"
done
./attune demo >"$TRY_DIR/demo" 2>&1 || {
    tail "$TRY_DIR/demo" >&2
    die "the demo failed"
}
say "attune demo has run"

# Word for word, each part of the page that stands for one way.
lines_of() { awk -v from="$1" 'index($0, from) == 1 { on = 1; next } /^[^ ]/ { on = 0 } on' INSTALL; }
lines_of "As services of systemd" >"$TRY_DIR/shared/install.sh"
lines_of "Then, on one machine" >>"$TRY_DIR/shared/install.sh"
lines_of "(attune-standalone in its place)" >"$TRY_DIR/shared/uninstall.sh"
boot machine

# docs/INSTALL.md, by somebody who has the files in a folder.
inside sh -c 'mkdir /work && cp /shared/SHA256SUMS /shared/attune-*.tar.gz /work'
block Tarball "attune standalone" >"$TRY_DIR/shared/lines.sh"
BLOCKS=1
# The last line ends it, as the page says.
echo 'kill %1' >>"$TRY_DIR/shared/lines.sh"
expect_output 'core\.echo *\| *succeeded' inside sh -c 'cd /work && bash -exum /shared/lines.sh'
every_block Tarball
say "docs/INSTALL.md, the lines of the tarball: $(grep 'core.echo' "$TRY_DIR/said" | tail -n1)"
inside rm -r /work

all_files >"$TRY_DIR/before"
inside sh -c "cd /tmp && tar -xzf /shared/attune-*.tar.gz && cd attune-* && bash -exu /shared/install.sh" >"$TRY_DIR/said" 2>&1 || {
    cat "$TRY_DIR/said" >&2
    die "the lines of INSTALL do not work"
}
await 60 "standalone is active" is_active attune-standalone.service
expect_output '"message": "hi"' inside attune submit core.echo -p message=hi --wait
say "INSTALL, word for word: an execution ran in attune-standalone.service"
inside bash -exu /shared/uninstall.sh >"$TRY_DIR/said" 2>&1 || {
    cat "$TRY_DIR/said" >&2
    die "the lines of INSTALL that uninstall do not work"
}
inside sh -c 'rm -r /tmp/attune-*'
nothing_but_data "$TRY_DIR/before" '/var/log|/var/lib/systemd|/etc/(passwd|shadow|group|gshadow)-?|/etc/\.pwd\.lock|/etc/(sysusers|tmpfiles)\.d' '/var/lib/attune'
