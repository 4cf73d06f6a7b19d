// Package lastvalue reads a stream that keeps the last message of each subject, without a consumer: whoever may create
// consumers may let the server write to any subject of the account.
//
// A [Reader] loads the stream in pages by direct gets, in stream order, and then follows it: the server republishes the
// headers of each stored message, and the Reader loads what is new up to the announced sequence. A direct get may be
// answered by a replica that lags behind; loading ends only when the stream's leader has nothing more.
//
// Each [Config.Probe] the Reader asks the leader for the state of the stream. So it finds an announcement that was
// lost, and a stream that was restored or recreated. It also loads the whole stream again after every reconnect. Then
// it passes messages again, of a restored stream older ones, too: the [Handler] keeps the one with the higher revision.
package lastvalue
