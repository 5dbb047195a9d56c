# What every HTML report carries: its style and script, and plotly where tools/setup.sh could fetch it. Where it could
# not, reports have tables alone, and say so.

find_program(PARE_PYTHON python3 REQUIRED)
set(PARE_PLOTLY "${CMAKE_SOURCE_DIR}/.deps/plotly/plotly.min.js" CACHE FILEPATH "plotly.min.js, for the plots of reports")
set(plotly ${PARE_PLOTLY})
if(NOT EXISTS "${PARE_PLOTLY}")
  message(STATUS "no plotly at '${PARE_PLOTLY}': reports will have tables and no plots")
  set(plotly "")
endif()
set(assets ${CMAKE_SOURCE_DIR}/pare/report/assets)
set(PARE_ASSETS_CPP ${CMAKE_BINARY_DIR}/generated/report_assets.cpp)
add_custom_command(OUTPUT ${PARE_ASSETS_CPP}
  COMMAND ${PARE_PYTHON} ${CMAKE_SOURCE_DIR}/tools/embed_assets.py ${PARE_ASSETS_CPP} ${assets}/report.css ${assets}/report.js ${plotly}
  DEPENDS ${CMAKE_SOURCE_DIR}/tools/embed_assets.py ${assets}/report.css ${assets}/report.js ${plotly} VERBATIM)
