package nats_test

import (
	"strconv"
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state/nats"
)

func TestEachAgentWaitsForItself(t *testing.T) {
	t.Parallel()
	turns := nats.NewTurns(3)
	for i := range 5 {
		require.Equal(t, i < 3, turns.Join(1, &natsgo.Msg{Subject: "1-" + strconv.Itoa(i)}), "a line has an end")
	}
	require.True(t, turns.Join(2, &natsgo.Msg{Subject: "2-0"}), "another's line is its own")
	require.True(t, turns.Join(3, &natsgo.Msg{Subject: "3-0"}))
	require.True(t, turns.Join(3, &natsgo.Msg{Subject: "3-1"}))
	var order []string
	for {
		<-turns.Some()
		msg, ok := turns.Take()
		require.True(t, ok)
		if order = append(order, msg.Subject); len(order) == 6 {
			break
		}
	}
	require.Equal(t, []string{"1-0", "2-0", "3-0", "1-1", "3-1", "1-2"}, order, "one of each agent, and each agent's in its order")
	_, ok := turns.Take()
	require.False(t, ok)
	require.True(t, turns.Join(1, &natsgo.Msg{Subject: "again"}))
	msg, ok := turns.Take()
	require.True(t, ok)
	require.Equal(t, "again", msg.Subject)
}
