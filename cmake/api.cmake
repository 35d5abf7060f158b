# firesteel-fake: the whole program over a scripted engine (tests/api/fake_engine.c), so that tests
# decide what the model says and when.
file(GLOB fake_tools CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/tools/*.c)
if(fake_tools)
  add_executable(firesteel-fake ${CMAKE_SOURCE_DIR}/tests/api/fake_engine.c ${fake_tools})
  target_link_libraries(firesteel-fake PRIVATE fst_client fst_plot fst_server fst_chat fst_tokenizer fst_weights fst_spec
    fst_kernels fst_device fst_base fst_libedit)
endif()
# kv-folder: makes folders of the disk tier for tests of `firesteel kv`.
add_executable(kv-folder ${CMAKE_SOURCE_DIR}/tests/api/kv_folder.c)
target_link_libraries(kv-folder PRIVATE fst_kv)
# grammar-probe: grammars from outside, for peer_grammar.py and for timing.
add_executable(grammar-probe ${CMAKE_SOURCE_DIR}/tests/api/grammar_probe.c)
target_link_libraries(grammar-probe PRIVATE fst_grammar)
target_include_directories(grammar-probe PRIVATE ${CMAKE_SOURCE_DIR}/tests)
# sse-source: a server that streams events, for what a client costs.
add_executable(sse-source ${CMAKE_SOURCE_DIR}/tests/api/sse_source.c)
