# Third-party libraries, all from Debian packages (scripts/setup names them). Static where Debian
# ships an archive, so that build/firesteel needs only libc and libm at run time.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

# target fst_pkg(NAME pc archive): PkgConfig::NAME with the static archive.
function(fst_static target pc archive)
  pkg_check_modules(P_${pc} REQUIRED ${pc})
  find_library(A_${archive} NAMES lib${archive}.a REQUIRED)
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_link_libraries(${target} INTERFACE ${A_${archive}})
  target_include_directories(${target} SYSTEM INTERFACE ${P_${pc}_INCLUDE_DIRS})
endfunction()

fst_static(PkgConfig::JANSSON jansson jansson)
fst_static(PkgConfig::XXHASH libxxhash xxhash)
fst_static(fst_libuv libuv uv_a)
target_link_libraries(fst_libuv INTERFACE Threads::Threads dl rt)
fst_static(fst_libedit libedit edit)
find_library(FST_TINFO NAMES libtinfo.a libncurses.a REQUIRED)
find_library(FST_BSD NAMES libbsd.a)
find_library(FST_MD NAMES libmd.a)
target_link_libraries(fst_libedit INTERFACE ${FST_TINFO} $<$<BOOL:${FST_BSD}>:${FST_BSD}> $<$<BOOL:${FST_MD}>:${FST_MD}>)

# llhttp: three generated C files inside node-llhttp (Debian 12), unpacked by scripts/setup into
# build/llhttp so that Node.js need not be installed.
find_path(FST_LLHTTP_INC llhttp.h PATHS /usr/share/include/llhttp
  ${CMAKE_SOURCE_DIR}/build/llhttp/usr/share/include/llhttp NO_DEFAULT_PATH REQUIRED)
find_path(FST_LLHTTP_SRC llhttp.c PATHS /usr/share/llhttp
  ${CMAKE_SOURCE_DIR}/build/llhttp/usr/share/llhttp NO_DEFAULT_PATH REQUIRED)
add_library(fst_llhttp STATIC ${FST_LLHTTP_SRC}/api.c ${FST_LLHTTP_SRC}/http.c ${FST_LLHTTP_SRC}/llhttp.c)
target_include_directories(fst_llhttp SYSTEM PUBLIC ${FST_LLHTTP_INC})
target_compile_options(fst_llhttp PRIVATE -w)
