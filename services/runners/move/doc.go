// Package move moves an organization from this cell to another one.
//
// The database of the source decides how far a move is: its row has the phase. From the commit of [Copying] on, no job
// of the organization is picked here, and nobody changes its pipelines and runners. A runner that has a job keeps it.
// The commit of [Moved] is the point of no return: before it, everything can be undone; after it, everything is
// repeated until it is done. From then on jobs are picked in the target only, so none runs twice. If an administrator
// of the target cancels an arrival before the target has opened it, the target never opens it, and the source goes on.
//
// A [Driver] takes the next step of each move. One replica does so at a time, and any other continues where it stopped:
// each step can be repeated, and a phase changes only from the one that the step began with.
package move
