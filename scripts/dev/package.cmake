# Debian packages by CPack, one per install component; scripts/package builds them. What goes into
# each is said in the folder `package` of its part of the tree.

set(PACKAGE_MAINTAINER "Gantry maintainers <maintainers@gantry.example.org>" CACHE STRING
    "Who answers for the packages")
find_program(PACKAGE_GZIP gzip REQUIRED)
set(GANTRY_LIBRARIES lib/${CMAKE_LIBRARY_ARCHITECTURE})  # where Debian's loader looks
set(GANTRY_UNITS /lib/systemd/system)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT ${PACKAGE_MAINTAINER})
set(CPACK_PACKAGE_VENDOR Gantry)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

# The changelog's date is the commit's: the same tree gives the same packages.
execute_process(COMMAND git -C ${CMAKE_SOURCE_DIR} log -1 --format=%cD
    OUTPUT_VARIABLE gantry_date OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT gantry_date)
  string(TIMESTAMP gantry_date "%a, %d %b %Y %H:%M:%S +0000" UTC)
endif()

# gantry_package(NAME SUMMARY TEXT DESCRIPTION TEXT SECTION NAME [DEPENDS ...] [RECOMMENDS ...]
#                [SUGGESTS ...] [CONFLICTS ...] [PROVIDES ...] [REPLACES ...] [CONFFILES ...]
#                [CONTROL FILES...] [OVERRIDES FILE])
# CONTROL: maintainer scripts, triggers and shlibs, by their names in the package. RELEASE in
# DEPENDS is the packages' version. OVERRIDES: what lintian is told to leave alone, and why. Files
# are installed with COMPONENT NAME.
function(gantry_package name)
  cmake_parse_arguments(arg "" "SUMMARY;DESCRIPTION;SECTION;OVERRIDES"
      "DEPENDS;RECOMMENDS;SUGGESTS;CONFLICTS;PROVIDES;REPLACES;CONFFILES;CONTROL"
      ${ARGN})
  set_property(GLOBAL APPEND PROPERTY gantry_packages ${name})
  string(TOUPPER ${name} upper)
  set(prefix CPACK_DEBIAN_${upper}_PACKAGE)
  string(CONCAT settings "set(${prefix}_NAME ${name})\nset(${prefix}_SECTION ${arg_SECTION})\n"
      "set(CPACK_DEBIAN_${upper}_DESCRIPTION [==[${arg_SUMMARY}\n${arg_DESCRIPTION}]==])\n")
  foreach(field DEPENDS RECOMMENDS SUGGESTS CONFLICTS PROVIDES REPLACES)
    if(arg_${field})
      list(JOIN arg_${field} ", " joined)
      string(APPEND settings "set(${prefix}_${field} [==[${joined}]==])\n")
    endif()
  endforeach()
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/control/${name})
  list(TRANSFORM arg_CONTROL PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ OUTPUT_VARIABLE control)
  if(arg_CONFFILES)
    list(JOIN arg_CONFFILES "\n" conffiles)
    file(CONFIGURE OUTPUT ${folder}/conffiles CONTENT "${conffiles}\n" @ONLY)
    list(APPEND control ${folder}/conffiles)
  endif()
  string(APPEND settings "set(${prefix}_CONTROL_EXTRA [==[${control}]==])\n")
  set_property(GLOBAL APPEND_STRING PROPERTY gantry_package_settings "${settings}")

  file(CONFIGURE OUTPUT ${folder}/changelog @ONLY CONTENT
"${name} (${PROJECT_VERSION}) unstable; urgency=medium

  * Release ${PROJECT_VERSION}.

 -- ${PACKAGE_MAINTAINER}  ${gantry_date}
")
  execute_process(COMMAND ${PACKAGE_GZIP} -9nc ${folder}/changelog
      OUTPUT_FILE ${folder}/changelog.gz COMMAND_ERROR_IS_FATAL ANY)
  set(doc share/doc/${name})
  install(FILES ${folder}/changelog.gz DESTINATION ${doc} COMPONENT ${name})
  install(FILES ${CMAKE_SOURCE_DIR}/scripts/dev/package_copyright RENAME copyright
      DESTINATION ${doc} COMPONENT ${name})
  if(arg_OVERRIDES)
    install(FILES ${arg_OVERRIDES} RENAME ${name} DESTINATION share/lintian/overrides
        COMPONENT ${name})
  endif()
endfunction()

# gantry_page(NAME SECTION PROGRAM [OPTIONS]): the manual page PROGRAM.SECTION of the package
# NAME, made from what the program prints for --help.
add_custom_target(package_pages ALL)
function(gantry_page name section program)
  set(page ${CMAKE_BINARY_DIR}/pages/${program}.${section})
  gantry_page_file(${name} ${page} share/man/man${section}
      manual $<TARGET_FILE:${program}> --section ${section} ${ARGN})
endfunction()
# gantry_page_file(NAME FILE FOLDER COMMAND...): any file that scripts/dev/program_pages writes.
function(gantry_page_file name file folder)
  get_filename_component(leaf ${file} NAME)
  set(written ${file})
  set(command ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/dev/program_pages ${ARGN}
      --date "${gantry_date}" --out ${file})
  set(depends ${CMAKE_SOURCE_DIR}/scripts/dev/program_pages)
  foreach(word ${ARGN})
    if(word MATCHES "TARGET_FILE:(.*)>")
      list(APPEND depends ${CMAKE_MATCH_1})
    endif()
  endforeach()
  add_custom_command(OUTPUT ${written} DEPENDS ${depends} VERBATIM
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/pages
      COMMAND ${command} COMMENT "Writing ${leaf}")
  if(folder MATCHES "/man[0-9]$")
    add_custom_command(OUTPUT ${written} APPEND COMMAND ${PACKAGE_GZIP} -9nkf ${written})
    set(file ${file}.gz)
  endif()
  string(MAKE_C_IDENTIFIER page_of_${leaf} target)
  add_custom_target(${target} DEPENDS ${written})
  add_dependencies(package_pages ${target})
  install(FILES ${file} DESTINATION ${folder} COMPONENT ${name})
endfunction()

# gantry_finish_packages(): to be called after all parts, in the root. A macro: CPack reads the
# variables of the root.
macro(gantry_finish_packages)
  get_property(CPACK_COMPONENTS_ALL GLOBAL PROPERTY gantry_packages)
  get_property(gantry_settings GLOBAL PROPERTY gantry_package_settings)
  file(WRITE ${CMAKE_BINARY_DIR}/package_settings.cmake "${gantry_settings}")
  include(${CMAKE_BINARY_DIR}/package_settings.cmake)
  # Read by cpack, which may have been told another version.
  set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/scripts/dev/package_release.cmake)
  include(CPack)
endmacro()
