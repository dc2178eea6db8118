# Read by cpack: names the version that it was told in what the packages depend on.
foreach(component ${CPACK_COMPONENTS_ALL})
  string(TOUPPER CPACK_DEBIAN_${component}_PACKAGE_DEPENDS depends)
  if(${depends})
    string(REPLACE "(= RELEASE)" "(= ${CPACK_PACKAGE_VERSION})" ${depends} "${${depends}}")
  endif()
endforeach()
