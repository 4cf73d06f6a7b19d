// Package runnerclient is a client of the HTTP contract between GitLab runners and their server, for tests. It is
// written from the contract and from recorded exchanges, and shares nothing with the server.
//
// [Client] has one method per request. They check that an answer has what a runner needs: the status, the media type
// and the headers. [Client.Execute] does what a runner does with a job: it sends the trace piece by piece, continues
// where the server asks for it, sends all of it again after a 412, cancels, uploads and downloads artifacts and reports
// the end. What happens inside of the job comes from a [Script]. [Client.Run] requests and executes jobs until its
// context ends.
//
// [Version] selects the headers that carry tokens, which changed with runner 17.11.
package runnerclient
