# For a shell at the top of the repository: `. tests/oracles/setup.sh`. OpenZFS's zdb, if there is one, ends when it is
# done from then on (zdb_end.c), that of 2.3 where tests call it, too.
if command -v zdb >/dev/null; then
  ZDB_PRELOAD=$(mktemp -d)/zdb_end.so
  cc -shared -fPIC -o "$ZDB_PRELOAD" tests/oracles/zdb_end.c
  export ZDB_PRELOAD PATH="$PWD/tests/oracles:$PATH"
fi
