// Package clone clones Git repositories to the volume of a workspace, with go-git: the image needs no git.
//
// A folder that is there is left as it is, whatever it contains: nothing that a person has done is overwritten. A clone
// appears at once under its final name, so one that was interrupted is made again.
package clone
