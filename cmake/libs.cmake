# Third-party libraries, all from Debian packages (scripts/setup names them).  Static where Debian
# ships an archive, so that build/firesteel needs only libc and libm at run time.
find_package(Threads REQUIRED)
find_package(PkgConfig)
set(FST_MISSING "")

# Target for a library by its pkg-config name and its archive; a missing one is remembered.
function(fst_static target pc archive package)
  if(PkgConfig_FOUND)
    pkg_check_modules(P_${archive} QUIET ${pc})
  endif()
  find_library(A_${archive} NAMES lib${archive}.a)
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  if(P_${archive}_FOUND AND A_${archive})
    target_link_libraries(${target} INTERFACE ${A_${archive}})
    target_include_directories(${target} SYSTEM INTERFACE ${P_${archive}_INCLUDE_DIRS})
  else()
    set(FST_MISSING ${FST_MISSING} ${package} PARENT_SCOPE)
  endif()
endfunction()

fst_static(PkgConfig::JANSSON jansson jansson libjansson-dev)
fst_static(PkgConfig::XXHASH libxxhash xxhash libxxhash-dev)
fst_static(fst_libuv libuv uv_a libuv1-dev)
target_link_libraries(fst_libuv INTERFACE Threads::Threads dl rt)
fst_static(fst_libedit libedit edit libedit-dev)
# What the archive of libedit needs in its turn; Debian's libedit-dev depends on all three.
find_library(FST_TINFO NAMES libtinfo.a libncurses.a)
find_library(FST_BSD NAMES libbsd.a)
find_library(FST_MD NAMES libmd.a)
foreach(lib FST_TINFO FST_BSD FST_MD)
  if(${lib})
    target_link_libraries(fst_libedit INTERFACE ${${lib}})
  endif()
endforeach()

# The disk tier of src/kv: its index, its queue of reads and writes, its optional compression.  Debian's
# archive of SQLite has what needs libz (its shell's file functions) left out.
fst_static(fst_sqlite sqlite3 sqlite3 libsqlite3-dev)
target_link_libraries(fst_sqlite INTERFACE Threads::Threads m)
fst_static(fst_uring liburing uring liburing-dev)
fst_static(fst_zstd libzstd zstd libzstd-dev)

# llhttp: three generated C files inside node-llhttp (Debian 12), unpacked by scripts/setup into
# build/llhttp so that Node.js need not be installed.  Looked up anew each time: the cache must not
# remember that it was missing.
unset(FST_LLHTTP_INC CACHE)
unset(FST_LLHTTP_SRC CACHE)
find_path(FST_LLHTTP_INC llhttp.h PATHS /usr/share/include/llhttp
  ${CMAKE_SOURCE_DIR}/build/llhttp/usr/share/include/llhttp NO_DEFAULT_PATH)
find_path(FST_LLHTTP_SRC llhttp.c PATHS /usr/share/llhttp
  ${CMAKE_SOURCE_DIR}/build/llhttp/usr/share/llhttp NO_DEFAULT_PATH)
if(NOT FST_LLHTTP_INC OR NOT FST_LLHTTP_SRC)
  list(APPEND FST_MISSING "node-llhttp (unpacked into build/llhttp)")
endif()

if(FST_MISSING)
  list(JOIN FST_MISSING ", " names)
  message(FATAL_ERROR "missing: ${names}; run scripts/setup")
endif()
add_library(fst_llhttp STATIC ${FST_LLHTTP_SRC}/api.c ${FST_LLHTTP_SRC}/http.c ${FST_LLHTTP_SRC}/llhttp.c)
target_include_directories(fst_llhttp SYSTEM PUBLIC ${FST_LLHTTP_INC})
# Without this a bare LF and any byte behind a CR end a line: a proxy in front sees other requests.
target_compile_definitions(fst_llhttp PUBLIC LLHTTP_STRICT_MODE=1)
target_compile_options(fst_llhttp PRIVATE -w)
