# Compiler settings and the functions that turn a folder into a library.
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_C_FLAGS_RELEASE "-O3 -g")
set(FST_SANITIZE "" CACHE STRING "address,undefined or thread: build everything under that sanitizer")

set(FST_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wvla -Wpointer-arith -Wcast-qual -Wwrite-strings
  -Wundef -Wformat=2 -Wnull-dereference -Wdouble-promotion -Werror
  -Wno-format-zero-length) # a log event without pairs
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${FST_WARNINGS}>"
  "$<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes;-Wmissing-prototypes;-Wold-style-definition>")
if(CMAKE_C_COMPILER_ID MATCHES "Clang")
  add_compile_options(-Wno-double-promotion) # it counts the macro INFINITY as a float
endif()
# Defined arithmetic everywhere: no contraction of a*b+c behind our back (docs/house.md, determinism).
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off;-fno-math-errno;-fno-trapping-math>")
add_compile_definitions(_GNU_SOURCE FST_VERSION="${PROJECT_VERSION}")
include_directories(${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
if(FST_SANITIZE)
  add_compile_options(-fsanitize=${FST_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${FST_SANITIZE})
endif()

set(FST_AVX2_FLAGS -mavx2 -mfma -mf16c)
# AVX-512 with BF16 dot products (Zen 4+, Sapphire Rapids+); a machine without them runs avx2.
set(FST_AVX512_FLAGS -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vbmi -mavx512bf16 -mfma -mf16c)

# What `make` builds: everything but tests.
add_custom_target(product)

function(fst_folder name)
  cmake_parse_arguments(A "" "" "DEPS;SUB" ${ARGN})
  file(GLOB src CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.c)
  foreach(sub ${A_SUB})
    file(GLOB more CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/${sub}/*.c)
    list(APPEND src ${more})
  endforeach()
  if(NOT src)
    add_library(fst_${name} INTERFACE)
    target_link_libraries(fst_${name} INTERFACE ${A_DEPS})
    return()
  endif()
  add_library(fst_${name} STATIC ${src})
  add_dependencies(product fst_${name})
  target_link_libraries(fst_${name} PUBLIC ${A_DEPS})
  foreach(f ${src})
    if(f MATCHES "_avx2\\.c$")
      set_source_files_properties(${f} PROPERTIES COMPILE_OPTIONS "${FST_AVX2_FLAGS}")
    elseif(f MATCHES "_avx512\\.c$")
      set_source_files_properties(${f} PROPERTIES COMPILE_OPTIONS "${FST_AVX512_FLAGS}")
    endif()
  endforeach()
endfunction()

function(fst_program name folder)
  cmake_parse_arguments(A "" "" "DEPS" ${ARGN})
  file(GLOB src CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${folder}/*.c)
  if(src)
    add_executable(${name} ${src})
    add_dependencies(product ${name})
    target_link_libraries(${name} PRIVATE ${A_DEPS})
  endif()
endfunction()
