# kernels/gpu: as a module for CUDA where nvcc is (-DFST_CUDA=ON, `make gpu`), and emulated on the CPU
# for the tests, with waves of 32 and 64 lanes.
file(GLOB gpu_kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/gpu/*.cu)

# Fibers and ThreadSanitizer do not mix, and one thread has no races.
include(CheckLanguage)
if(NOT CMAKE_CXX_COMPILER)
  unset(CMAKE_CXX_COMPILER CACHE) # looked up anew: it may have come since
endif()
check_language(CXX)
if(CMAKE_CXX_COMPILER AND NOT FST_SANITIZE STREQUAL "thread")
  enable_language(CXX)
  foreach(wave 32 64)
    add_library(fst_emulate${wave} OBJECT EXCLUDE_FROM_ALL ${gpu_kernels})
    set_source_files_properties(${gpu_kernels} PROPERTIES LANGUAGE CXX)
    target_compile_definitions(fst_emulate${wave} PRIVATE GPU_WAVE=${wave})
    target_compile_options(fst_emulate${wave} PRIVATE -x c++ -std=c++17)
    target_link_libraries(fst_emulate${wave} PUBLIC fst_base)
  endforeach()
  # Those of kernels/sm90 that are written over sm90/mma.cuh, waves of 32 lanes.
  set(sm90_emulated ${CMAKE_SOURCE_DIR}/src/kernels/sm90/attention.cu
                    ${CMAKE_SOURCE_DIR}/src/kernels/sm90/attention_paged.cu
                    ${CMAKE_SOURCE_DIR}/src/kernels/sm90/chain.cu
                    ${CMAKE_SOURCE_DIR}/src/kernels/sm90/index.cu
                    ${CMAKE_SOURCE_DIR}/src/kernels/sm90/route.cu
                    ${CMAKE_SOURCE_DIR}/src/kernels/sm90/seam.cu)
  set_source_files_properties(${sm90_emulated} PROPERTIES LANGUAGE CXX)
  target_sources(fst_emulate32 PRIVATE ${sm90_emulated})
endif()

# Programs of tests/gpu need a card to run; they are built everywhere.
find_package(PkgConfig REQUIRED)
pkg_check_modules(CMOCKA IMPORTED_TARGET cmocka)
if(CMOCKA_FOUND)
  foreach(name gpu_same gpu_graphs)
    add_executable(${name} ${CMAKE_SOURCE_DIR}/tests/gpu/${name}.c)
    target_link_libraries(${name} PRIVATE fst_engine fst_chat PkgConfig::CMOCKA)
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  endforeach()
endif()

option(FST_CUDA "build libfiresteel_cuda.so (needs nvcc)" OFF)
if(FST_CUDA)
  add_subdirectory(cmake/cuda)
endif()
