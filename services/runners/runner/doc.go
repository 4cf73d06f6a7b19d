// Package runner is a runner of GitLab's protocol: a program that executes jobs, with a token and settings.
//
// The types and the decisions are pure: which jobs a runner takes ([Runner.Takes]), why it does not take one
// ([Runner.Explain]), whether it is online ([StatusOf]), and which settings are valid ([Settings.Validate]).
//
// A [Registry] keeps the runners of the cell in the memory of one replica, so that idle requests for jobs cost no query.
// It reads them from a [Store], at the start and when a [Changes] reports that they changed. A change on this replica
// is effective when [Registry.Put] or [Registry.Remove] returns, a change on another one when its notification arrives.
// [Contacts] records which processes of a runner are in contact.
package runner
