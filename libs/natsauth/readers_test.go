package natsauth_test

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsauth/natsadmin"
)

// TestOnlyReadersOfAuditDirectoryAndAccessReceiveThem lets each principal subscribe to everything that it may, and send
// every request that it may, while records are stored that only some may read.
func TestOnlyReadersOfAuditDirectoryAndAccessReceiveThem(t *testing.T) {
	t.Parallel()

	const audited, listed, entered = "who requested what", "who may do what", "who may enter what"

	readers := map[string][]string{
		natsauth.PrincipalState:     {audited, listed, entered}, // It owns the streams.
		natsauth.PrincipalDeploys:   {listed},
		natsauth.PrincipalRunners:   {listed},
		natsauth.PrincipalAdmission: {listed},
		natsauth.PrincipalGateway:   {listed, entered},
		natsauth.PrincipalRelay:     {listed},
		natsauth.PrincipalOperator:  {audited, entered},
	}
	c := startCell(t)
	admin := c.static(t, natsadmin.Name)
	store := func() {
		t.Helper()

		for subject, record := range map[string]string{
			"lockstep.local.audit.7.requests": audited, "lockstep.local.directory.user.1": listed,
			"lockstep.local.directory.key.k": listed, "lockstep.local.access.workspace.w": entered,
		} {
			_, err := admin.RequestWithContext(testContext(t), subject, []byte(record))
			require.NoError(t, err)
		}
	}

	for _, p := range append(confined(), withJetStream()...) {
		store()

		a := p.connect(t, c)
		received := make(chan *nats.Msg, 100_000)
		inbox := natsauth.InboxPrefix(p.name) + ".readers"

		for _, subject := range append(p.subscribes, inbox, "lockstep.local.audit.>", "lockstep.local.directory.>",
			"lockstep.local.access.>") {
			_, err := a.ChanSubscribe(subject, received)
			require.NoError(t, err)
		}

		carriers := a.carriers(t, p.name, carrierSubjects())

		for _, carrier := range carriers {
			for _, body := range append(bodies(carrier, inbox), `{"seq":1,"batch":10}`,
				`{"last_by_subj":"lockstep.local.audit.7.requests"}`, `{"next_by_subj":">","seq":1}`) {
				require.NoError(t, a.PublishRequest(carrier, inbox, []byte(body)))
			}
		}

		require.NoError(t, a.FlushWithContext(testContext(t)))
		store()
		c.settle(t)
		require.NoError(t, a.FlushWithContext(testContext(t)))

		found := map[string]bool{}

		for _, m := range drain(received) {
			for _, record := range []string{audited, listed, entered} {
				found[record] = found[record] || strings.Contains(string(m.Data), record) ||
					strings.Contains(string(m.Data), base64.StdEncoding.EncodeToString([]byte(record)))
			}
		}

		for _, record := range []string{audited, listed, entered} {
			require.Equal(t, slices.Contains(readers[p.name], record), found[record], "%s reads %q", p.name, record)
		}

		a.Close()
	}
}
