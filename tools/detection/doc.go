// Package detection says what the deploys service concludes from a recorded stretch of the stream
// OBSERVED, and how that differs from what was published.
//
// [Detector] keeps in memory what the service keeps in its database, and decides by the service's
// own packages rollout and environment: messages in, facts out, a function of the messages alone.
// It publishes and stores nothing. From the first message of a stream on its facts are those of the
// service; from a later one on, what was there before counts as it does for a service that has just
// been set up: a workload is a silent baseline until it changes, and facts are counted anew.
//
// Whose clusters are it judges by the service's own rules, too: by what the service has decided,
// where that can be asked for ([Detector.Decided]), and otherwise by finding it out from the
// stretch ([Detector.Decide]).
//
// [Compare] pairs facts by their ids, and where a stretch begins later by what they say happened
// and when.
package detection
