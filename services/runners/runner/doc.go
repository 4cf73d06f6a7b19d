// Package runner is a runner of GitLab's protocol: a program that executes jobs, with a token and settings.
//
// The types and the decisions are pure: which jobs a runner takes ([Runner.Takes]), why it does not take one
// ([Runner.Explain]), whether it is online ([StatusOf]), and which settings are valid ([Settings.Validate]).
//
// A [Registry] keeps the runners of the cell in the memory of one replica: idle requests for jobs cost no query. It
// reads them from a [Store], at the start and when [Changes] reports that they changed. A change by this replica is
// effective when [Registry.Refresh] returns, one by another replica when its notification arrives. Reads of the store
// are one after the other, so that a later one never shows an older runner. While the store is unreachable, the last
// known runners stay.
package runner
