// Package processes decides whether programs that people have started in a workspace work.
//
// A process is one of people if a session of the agent has started it, directly or not, also after the session has
// ended. The agent marks its sessions by a variable of the environment, which programs pass on to those they start.
// A process without the mark counts as its parent does. Processes of the image's command and of postStart have no mark.
// Those of the editor have another one: they are processes of people only in a terminal, so the editor itself, its
// extensions and its language servers are not.
//
// The processes of people work if they have used [MinShare] of one processor together since the previous check. So
// shells, sleep and tail -f, which wait, are no work, and neither is a program that waits for the network.
//
// Compare and Assign are pure. Read reads /proc of Linux: it sees the processes of the container.
package processes
