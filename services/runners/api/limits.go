package api

import "lockstep.internal/libs/apirequest"

// maxRequest is the maximum size of an uncompressed request, in bytes. A file of a pipeline has up to 256 KiB.
const maxRequest = 1 << 20

// limits of requests. Requests of streaming calls have nothing to check.
func limits() apirequest.Limits {
	const maxText, maxEntries = 64 << 10, 1000
	return apirequest.Limits{
		Text: maxText, Entries: maxEntries, Timeout: apirequest.DefaultTimeout, Advice: "retry later",
	}
}
