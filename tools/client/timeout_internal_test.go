package client

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

func TestCallWithoutAnswerEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		silent := func(ctx context.Context, _ connect.AnyRequest) (connect.AnyResponse, error) {
			<-ctx.Done()
			return nil, connect.NewError(connect.CodeDeadlineExceeded, ctx.Err())
		}
		began := time.Now()
		_, err := answerWithin(answerTimeout)(silent)(t.Context(), connect.NewRequest(&struct{}{}))
		require.Equal(t, errcode.DeadlineExceeded, fault.CodeOf(err))
		require.ErrorContains(t, err, "did not answer")
		require.Equal(t, answerTimeout, time.Since(began))
	})
}
