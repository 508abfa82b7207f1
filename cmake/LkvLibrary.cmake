# liblatentkv.so.0 from the objects.
add_library(latentkv SHARED $<TARGET_OBJECTS:latentkv_objects>)
target_include_directories(latentkv PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(latentkv PRIVATE $<BUILD_INTERFACE:latentkv_deps>)
set_target_properties(latentkv PROPERTIES SOVERSION ${LKV_ABI} VERSION ${LKV_ABI}.${PROJECT_VERSION_MINOR}.${PROJECT_VERSION_PATCH})
