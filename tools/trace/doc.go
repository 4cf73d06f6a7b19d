// Package trace shows the output of CI jobs. The output comes from programs that nobody checked: a [Writer] passes on
// text, line ends and colours only, so that a job cannot control the terminal of a reader.
//
// A runner marks sections in the output. A line `section_start:TIME:NAME[collapsed=true]` begins one, and the text that
// follows is its heading; `section_end:TIME:NAME` ends it. Each marker ends with a carriage return. On a terminal, a
// Writer shows headings with the duration of the section, and hides the lines of collapsed sections. Otherwise, it
// removes the markers.
package trace
