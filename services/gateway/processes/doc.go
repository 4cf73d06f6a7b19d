// Package processes finds out whether programs that people have started work, in the running workspaces whose policy
// counts them, and reports it as activity.
//
// Nobody needs to be connected to a workspace: the gateway asks its agent. In each round, one replica asks all
// workspaces. If it is killed meanwhile, the next round is as good: an agent answers when programs were last seen to
// work, not whether they work now. A workspace whose agent does not answer has no activity.
package processes
