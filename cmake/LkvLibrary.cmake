# liblatentkv.so.0 from the objects: only the names of the map are exported, nothing is left
# undefined, and it is never unmapped (threads and a CUDA context may still run in it).
set(lkv_map ${PROJECT_SOURCE_DIR}/cmake/latentkv.map)
add_library(latentkv SHARED $<TARGET_OBJECTS:latentkv_objects>)
add_library(latentkv::latentkv ALIAS latentkv)
target_include_directories(latentkv PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(latentkv PRIVATE $<BUILD_INTERFACE:latentkv_deps>)
target_link_options(latentkv PRIVATE -Wl,--version-script=${lkv_map} -Wl,-z,nodelete
                                     -Wl,--exclude-libs,ALL)
if(NOT LKV_SANITIZE) # a sanitizer's runtime comes with the program
  target_link_options(latentkv PRIVATE -Wl,-z,defs)
endif()
set_target_properties(
  latentkv PROPERTIES SOVERSION ${LKV_ABI} LINK_DEPENDS ${lkv_map}
                      VERSION ${LKV_ABI}.${PROJECT_VERSION_MINOR}.${PROJECT_VERSION_PATCH})

install(TARGETS latentkv EXPORT latentkvTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/latentkv DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h")

# pkg-config and find_package(latentkv).
include(CMakePackageConfigHelpers)
set(lkv_package ${CMAKE_INSTALL_LIBDIR}/cmake/latentkv)
file(RELATIVE_PATH LKV_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix) # relocatable
string(REGEX REPLACE "/$" "" LKV_PC_PREFIX ${LKV_PC_PREFIX})
configure_file(${PROJECT_SOURCE_DIR}/cmake/latentkv.pc.in ${PROJECT_BINARY_DIR}/latentkv.pc @ONLY)
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/latentkvConfig.cmake.in ${PROJECT_BINARY_DIR}/latentkvConfig.cmake
  INSTALL_DESTINATION ${lkv_package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/latentkvConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/latentkvConfig.cmake
              ${PROJECT_BINARY_DIR}/latentkvConfigVersion.cmake DESTINATION ${lkv_package})
install(EXPORT latentkvTargets NAMESPACE latentkv:: DESTINATION ${lkv_package})
install(FILES ${PROJECT_BINARY_DIR}/latentkv.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
