package repair

import "lockstep.internal/services/dispatcher/failure"

// firstPublishedAttempt is the first attempt of a repair whose temporary failure is published, after about 30 s.
const firstPublishedAttempt = 6

// ShouldPublish reports whether a failed repair attempt is published. applied is false if the last published result of
// the workspace is a failure.
func ShouldPublish(f *failure.Failure, applied bool, attempt int) bool {
	return !applied || !f.Reason.IsTemporary() || attempt >= firstPublishedAttempt
}
