package route

// Failure is how an attempt to send a request on an open stream ended without a response.
type Failure int

const (
	// Final failures are not retried: the agent refused the request or did not reach the target, the target broke the
	// protocol or closed a new stream without a response, or the caller has gone.
	Final Failure = iota
	// NotAccepted means that a relay or an agent reset the stream before it used it. The target received nothing.
	NotAccepted
	// Overloaded is NotAccepted, because the agent has its maximum of open streams.
	Overloaded
	// ConnectionLost means that a tunnel of the stream ended, or that the agent does not respond. The target may have
	// received the request, or receive it later.
	ConnectionLost
	// ClosedWhileIdle means that the target closed a stream that had carried a request before, and did not respond
	// to this one. It may have received it.
	ClosedWhileIdle
)

// RetryConditions has what a retry of a request depends on.
type RetryConditions struct {
	// Replayable reports whether the request may be sent twice: its method is safe (RFC 9110, section 9.2.1), or
	// nothing was sent to the target.
	Replayable bool
	// HasBody reports whether the request has a body. Part of it may have been read from the caller, and cannot be read
	// again.
	HasBody bool
}

// Action is what follows a failure.
type Action int

const (
	// Fail returns the error to the caller.
	Fail Action = iota
	// RetryElsewhere sends the request through another connection, or in the next round through any.
	RetryElsewhere
	// RetryAnywhere sends the request on another stream, through any connection.
	RetryAnywhere
)

// AfterFailure decides whether a request is retried. It is the only rule for that:
//
//	failure         | replayable     | not replayable | with a body
//	NotAccepted     | RetryElsewhere | RetryElsewhere | Fail
//	Overloaded      | RetryElsewhere | RetryElsewhere | Fail
//	ConnectionLost  | RetryElsewhere | Fail           | Fail
//	ClosedWhileIdle | RetryAnywhere  | Fail           | Fail
//	Final           | Fail           | Fail           | Fail
func AfterFailure(f Failure, r RetryConditions) Action {
	switch {
	case r.HasBody:
		return Fail
	case f == NotAccepted, f == Overloaded, f == ConnectionLost && r.Replayable:
		return RetryElsewhere
	case f == ClosedWhileIdle && r.Replayable:
		return RetryAnywhere
	}
	return Fail
}
