# Class table of the pre-tokeniser, made from the distribution's Unicode data (unicode-data) by a
# small C program, so that neither the table nor a script language is needed in the repository.
set(FST_UNICODE_DIR /usr/share/unicode CACHE PATH "Unicode character database (package unicode-data)")
set(ucd ${FST_UNICODE_DIR}/extracted/DerivedGeneralCategory.txt ${FST_UNICODE_DIR}/PropList.txt)
foreach(f ${ucd})
  if(NOT EXISTS ${f})
    message(FATAL_ERROR "${f} not found: install unicode-data (scripts/setup) or set FST_UNICODE_DIR")
  endif()
endforeach()
add_executable(unicode_gen ${CMAKE_SOURCE_DIR}/src/tokenizer/gen/unicode_gen.c)
set(FST_UNICODE_TABLE ${CMAKE_BINARY_DIR}/gen/unicode_table.h)
add_custom_command(OUTPUT ${FST_UNICODE_TABLE}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/gen
  COMMAND unicode_gen ${ucd} > ${FST_UNICODE_TABLE}
  DEPENDS unicode_gen ${ucd} VERBATIM)
target_sources(fst_tokenizer PRIVATE ${FST_UNICODE_TABLE})
target_include_directories(fst_tokenizer PRIVATE ${CMAKE_BINARY_DIR}/gen)
# Classes of \p{...} in regular expressions, the same way.
set(ucd ${FST_UNICODE_DIR}/extracted/DerivedGeneralCategory.txt ${FST_UNICODE_DIR}/Scripts.txt
  ${FST_UNICODE_DIR}/PropertyValueAliases.txt ${FST_UNICODE_DIR}/CaseFolding.txt)
add_executable(classes_gen ${CMAKE_SOURCE_DIR}/src/grammar/gen/classes_gen.c)
set(FST_CLASSES_TABLE ${CMAKE_BINARY_DIR}/gen/classes_table.h)
add_custom_command(OUTPUT ${FST_CLASSES_TABLE}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/gen
  COMMAND classes_gen ${ucd} > ${FST_CLASSES_TABLE}
  DEPENDS classes_gen ${ucd} VERBATIM)
target_sources(fst_grammar PRIVATE ${FST_CLASSES_TABLE})
target_include_directories(fst_grammar PRIVATE ${CMAKE_BINARY_DIR}/gen)
