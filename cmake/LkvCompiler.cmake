# Compiler switches that hold for every target: warnings, sanitizers, ccache.
set(LKV_WARNINGS -Wall -Wextra)
if(LKV_WERROR)
  list(APPEND LKV_WARNINGS -Werror)
endif()

if(LKV_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(LKV_SANITIZE STREQUAL "fuzzer") # lkv_fuzz() adds libFuzzer's main
  add_compile_options(-fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(LKV_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(LKV_SANITIZE)
  message(FATAL_ERROR "LKV_SANITIZE is '${LKV_SANITIZE}'; need address, thread, fuzzer or nothing")
endif()

find_program(LKV_CCACHE ccache)
if(LKV_CCACHE AND NOT CMAKE_C_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${LKV_CCACHE})
endif()
