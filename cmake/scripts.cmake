# Tests that are scripts, and the labels of all tests (tests/run --only LABEL).
foreach(kind unit prop fault sim golden)
  get_property(all DIRECTORY PROPERTY TESTS)
  foreach(t ${all})
    if((kind STREQUAL "unit" AND t MATCHES "^test_") OR t MATCHES "^${kind}_")
      set_tests_properties(${t} PROPERTIES LABELS ${kind})
    elseif(t STREQUAL "checkkern")
      set_tests_properties(${t} PROPERTIES LABELS kern)
    endif()
  endforeach()
endforeach()

function(fst_script_test name label)
  add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS ${label}
    ENVIRONMENT "FST_BUILD=${CMAKE_BINARY_DIR};PYTHONDONTWRITEBYTECODE=1")
endfunction()

foreach(lint layers banned headers size readmes tour glossary paths formatting shell clang needs)
  fst_script_test(lint_${lint} lint python3 tests/lint/lint.py ${lint})
endforeach()
fst_script_test(lint_runner lint tests/run --self-test)

# kernels/gpu for AMD cards, where their compiler is.
fst_script_test(hip_compile kern scripts/hip-compile ${CMAKE_BINARY_DIR}/hip)

# The bundled model on held-out items; FST_TEST_SIZE=long takes them from generators that need packages.
fst_script_test(kindling_quality long tests/python tests/long/kindling_quality.py)

# Black-box tests: test_*.py need Python alone, peer_*.py packages of tests/api/requirements.txt.
file(GLOB api CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/api/test_*.py)
foreach(f ${api})
  get_filename_component(t ${f} NAME_WE)
  fst_script_test(api_${t} api python3 tests/api/${t}.py)
endforeach()
file(GLOB peers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/api/peer_*.py)
foreach(f ${peers})
  get_filename_component(t ${f} NAME_WE)
  fst_script_test(${t} peers tests/python tests/api/${t}.py)
endforeach()
