package security_test

import (
	"strconv"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/stack"
)

// harmfulHeader is a header that the server interprets.
type harmfulHeader struct {
	name   string
	header nats.Header
}

func harmfulHeaders(s *isolationScenario) []harmfulHeader {
	of := func(name string, pairs ...string) harmfulHeader {
		header := nats.Header{}
		for i := 0; i < len(pairs); i += 2 {
			header.Set(pairs[i], pairs[i+1])
		}
		return harmfulHeader{name, header}
	}
	desired := stack.Cell.Desired(s.victim.AgentID, s.workspaces[0].ID)
	all := []harmfulHeader{
		of("a roll-up of the stream", server.JSMsgRollup, server.JSMsgRollupAll),
		of("a roll-up of the subject", server.JSMsgRollup, server.JSMsgRollupSubject),
		of("a time to live", server.JSMessageTTL, "1s"),
		of("a counter", server.JSMessageIncr, "1"),
		of("a batch", server.JSBatchId, attackName, server.JSBatchSeq, "1", server.JSBatchCommit, "1"),
		of("a schedule for another's subject",
			server.JSSchedulePattern, "@at 2000-01-01T00:00:00Z", server.JSScheduleTarget, desired),
		of("a repeated schedule",
			server.JSSchedulePattern, "@every 1s", server.JSScheduleTarget, desired, server.JSScheduleTTL, "1s"),
		of("another expected stream", server.JSExpectedStream, topology.StreamDesired),
		of("an expected sequence",
			server.JSExpectedLastSeq, "1", server.JSExpectedLastSubjSeq, "1", server.JSExpectedLastSubjSeqSubj, desired),
		of("an expected message id", server.JSExpectedLastMsgId, attackName),
		of("a source", server.JSStreamSource, topology.StreamDesired+" 1"),
		of("another's account", server.ClientInfoHdr, `{"acc":"CONTROL","svc":"CONTROL","user":"state"}`),
		of("a trace to another's subject", server.MsgTraceDest, desired),
		of("a trace to an inbox", server.MsgTraceDest, "_INBOX_state."+guessedInbox+".trace", server.MsgTraceOnly, "true"),
		of("the headers of a republished message",
			"Nats-Stream", topology.StreamDesired, "Nats-Subject", desired, "Nats-Sequence", "1", "Nats-Last-Sequence", "1"),
	}
	for _, guess := range s.guessedIDs() {
		all = append(all, of("the message id "+guess, server.JSMsgId, guess))
	}
	return all
}

// guessedIDs returns message ids that others could use next.
func (s *isolationScenario) guessedIDs() []string {
	w := s.workspaces[0]
	next := strconv.FormatInt(w.Get().GetDesiredRevision()+1, 10)
	return []string{w.ID + "/" + next, w.ID + "/desired/" + next, "1"}
}
