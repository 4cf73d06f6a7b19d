// Package roster keeps what is known of the agents that tell of clusters, and the rules that follow from it: which cluster an agent is in, whether a full resync came in whole and
// what is absent by it, when the versions of a cluster began anew, for whom an agent speaks, and whose clusters are ([Claims]).
//
// It is pure: the same messages in the same order give the same answers. The service, a rebuild and a replay all go by it, so that they cannot differ. What it is
// told it keeps apart from what it was given until that is stored.
//
// A message of another cluster than the agent's counts for nothing: an agent changes its cluster with the begin of a full resync only.
package roster
