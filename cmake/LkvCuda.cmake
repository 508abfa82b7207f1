# liblatentkv_cuda.so beside liblatentkv.so, where nvcc is found (LKV_CUDA AUTO, ON or OFF). The CUDA
# runtime is linked statically, cuBLAS by the dynamic linker; one symbol is exported. Sources come
# from the folders: *.cu for every device, sm90/*.cu for Hopper alone, *.c host code.
# LKV_CUDA_LIBRARY is TRUE where the library is built.
set(LKV_CUDA_LIBRARY FALSE)
if(LKV_CUDA STREQUAL "OFF")
  return()
endif()
find_program(LKV_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
find_package(CUDAToolkit QUIET)
if(NOT LKV_NVCC OR NOT CUDAToolkit_FOUND OR NOT TARGET CUDA::cublas OR NOT CMAKE_CXX_COMPILER)
  if(LKV_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LKV_CUDA is ON, but nvcc, its C++ host compiler or cuBLAS is missing")
  endif()
  message(STATUS "liblatentkv_cuda.so left out: nvcc, its C++ host compiler or cuBLAS is missing")
  return()
endif()
set(LKV_CUDA_LIBRARY TRUE)

# The generic kernels: sm_80 with PTX for what comes after it, and sm_90a so that Hopper compiles
# nothing at start. common/ and sm90/ use Hopper's own instructions.
set(LKV_CUDA_TARGETS "80;90a" CACHE STRING "targets of the generic kernels: 80, 90a or both")
set(LKV_CUDA_GENERIC)
if("80" IN_LIST LKV_CUDA_TARGETS)
  list(APPEND LKV_CUDA_GENERIC -gencode=arch=compute_80,code=[sm_80,compute_80])
endif()
if("90a" IN_LIST LKV_CUDA_TARGETS)
  list(APPEND LKV_CUDA_GENERIC -gencode=arch=compute_90a,code=sm_90a)
endif()
set(LKV_CUDA_HOPPER -gencode=arch=compute_90a,code=sm_90a)
set(LKV_CUDA_FLAGS -O3 -std=c++17 -lineinfo -Xptxas=-v -Xcompiler=-fPIC,-fvisibility=hidden,-Wall
                   -DLKV_BUILDING -I${PROJECT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/include)
if(LKV_WERROR)
  list(APPEND LKV_CUDA_FLAGS -Werror=all-warnings)
endif()

# One object by nvcc; its resource report (ptxas -v) stays beside it as <object>.ptxas for the build
# test that refuses spills.
function(lkv_cuda_object out source)
  cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE name)
  string(REPLACE "/" "_" name ${name})
  set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
  if(source MATCHES "/sm90/" OR source MATCHES "/cuda/common/")
    set(targets ${LKV_CUDA_HOPPER})
  else()
    set(targets ${LKV_CUDA_GENERIC})
  endif()
  if(source MATCHES "/quant/cuda/") # bytes are specified operation by operation
    list(APPEND targets -fmad=false -prec-div=true -prec-sqrt=true -ftz=false)
  endif()
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${CMAKE_COMMAND} -DLKV_LOG=${object}.ptxas -P ${PROJECT_SOURCE_DIR}/cmake/nvcc.cmake --
            ${LKV_NVCC} -ccbin ${CMAKE_CXX_COMPILER} ${LKV_CUDA_FLAGS} ${targets} -MD -MF ${object}.d
            -MT ${object} -c ${source} -o ${object}
    DEPENDS ${source} ${PROJECT_SOURCE_DIR}/cmake/nvcc.cmake
    DEPFILE ${object}.d
    COMMENT "nvcc ${name}" VERBATIM)
  set(${out} ${object} PARENT_SCOPE)
endfunction()

file(GLOB lkv_cuda_kernels CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/quant/cuda/*.cu ${PROJECT_SOURCE_DIR}/attention/cuda/*.cu
     ${PROJECT_SOURCE_DIR}/attention/cuda/common/*.cu ${PROJECT_SOURCE_DIR}/attention/cuda/sm80/*.cu
     ${PROJECT_SOURCE_DIR}/attention/cuda/sm90/*.cu)
file(GLOB lkv_cuda_sources CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/quant/cuda/*.c ${PROJECT_SOURCE_DIR}/attention/cuda/*.c
     ${PROJECT_SOURCE_DIR}/attention/cuda/common/*.c ${PROJECT_SOURCE_DIR}/attention/cuda/sm80/*.c
     ${PROJECT_SOURCE_DIR}/attention/cuda/sm90/*.c)
foreach(kernel IN LISTS lkv_cuda_kernels)
  lkv_cuda_object(object ${kernel})
  list(APPEND lkv_cuda_objects ${object})
endforeach()

add_library(latentkv_cuda SHARED ${lkv_cuda_sources} ${lkv_cuda_objects})
set_source_files_properties(${lkv_cuda_objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
set_target_properties(latentkv_cuda PROPERTIES LINKER_LANGUAGE CXX)
target_include_directories(latentkv_cuda PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR})
target_include_directories(latentkv_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_options(latentkv_cuda PRIVATE ${LKV_WARNINGS})
target_compile_definitions(latentkv_cuda PRIVATE LKV_BUILDING)
target_link_libraries(latentkv_cuda PRIVATE CUDA::cudart_static CUDA::cublas Threads::Threads
                                            ${CMAKE_DL_LIBS} rt m)
# nvcc's launch code guards its statics by the C++ runtime: linked in, not asked for at load time.
target_link_options(latentkv_cuda PRIVATE -static-libstdc++ -static-libgcc -Wl,-z,defs -Wl,-z,nodelete -Wl,--exclude-libs,ALL)
install(TARGETS latentkv_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
