# lkv_jemalloc: the private jemalloc that core/alloc.c uses, or nothing (then alloc.c uses libc).
# LKV_JEMALLOC_SOURCE is built into the build folder; otherwise .cache/jemalloc, where scripts/setup
# leaves it, is taken. Sanitizers know libc's heap only.
add_library(lkv_jemalloc INTERFACE)
if(LKV_JEMALLOC STREQUAL "off" OR LKV_SANITIZE)
  return()
elseif(NOT LKV_JEMALLOC MATCHES "^(auto|on)$")
  message(FATAL_ERROR "LKV_JEMALLOC is '${LKV_JEMALLOC}'; need auto, on or off")
endif()

set(lkv_jemalloc_dir ${PROJECT_SOURCE_DIR}/.cache/jemalloc)
if(LKV_JEMALLOC_SOURCE)
  set(lkv_jemalloc_dir ${PROJECT_BINARY_DIR}/jemalloc)
  execute_process(
    COMMAND ${PROJECT_SOURCE_DIR}/scripts/jemalloc --source ${LKV_JEMALLOC_SOURCE} --out ${lkv_jemalloc_dir}
    COMMAND_ERROR_IS_FATAL ANY)
endif()
set(lkv_jemalloc_archive ${lkv_jemalloc_dir}/lib/libjemalloc_pic.a)
if(NOT EXISTS ${lkv_jemalloc_archive})
  if(LKV_JEMALLOC STREQUAL "on")
    message(FATAL_ERROR "LKV_JEMALLOC is on, but ${lkv_jemalloc_archive} is missing: run scripts/jemalloc")
  endif()
  message(STATUS "host metadata uses libc's heap: no private jemalloc (scripts/jemalloc builds it)")
  return()
endif()
target_include_directories(lkv_jemalloc SYSTEM INTERFACE ${lkv_jemalloc_dir}/include)
target_compile_definitions(lkv_jemalloc INTERFACE LKVI_JEMALLOC)
target_link_libraries(lkv_jemalloc INTERFACE ${lkv_jemalloc_archive})
