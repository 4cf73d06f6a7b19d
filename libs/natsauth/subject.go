package natsauth

import (
	"strconv"
)

// Names of the streams and per-agent consumers that an agent may reach.
const (
	streamDesired = "DESIRED"
	streamControl = "CONTROL"
	streamDead    = "DEAD"

	consumerDispatcher = "dispatcher-"
	consumerWatcher    = "watcher-"
)

func cellSubject(cell, rest string) string {
	return "lockstep." + cell + "." + rest
}

func agentToken(id int64) string {
	return strconv.FormatInt(id, 10)
}
