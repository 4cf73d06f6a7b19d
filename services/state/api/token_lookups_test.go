package api

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/errcode"
)

func TestFloodOfUnknownTokensDoesNotDelayValidOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newTokenLookups()
		honest := natsauth.TokenHash{1}
		unknown := fault.New(errcode.NotFound, "no such token")
		lookUp := func(hash natsauth.TokenHash, result error) {
			end, err := l.begin(t.Context(), hash)
			require.NoError(t, err)
			end(result)
		}
		lookUp(honest, nil)

		flood, stop := context.WithCancel(t.Context())
		querying := make(chan func(error), maxLookups)
		for i := range maxLookups + maxWaitingLookups {
			go func() {
				end, err := l.begin(flood, natsauth.TokenHash{2, byte(i)})
				if err == nil {
					querying <- end
				}
			}()
		}
		synctest.Wait()
		require.Len(t, querying, maxLookups, "concurrent queries")
		_, err := l.begin(flood, natsauth.TokenHash{3})
		require.Equal(t, errcode.ResourceExhausted, fault.CodeOf(err))
		lookUp(honest, errors.New("no connection"))
		lookUp(honest, nil)

		(<-querying)(unknown)
		synctest.Wait()
		require.Len(t, querying, maxLookups, "the next one was waiting")
		stop()
		synctest.Wait()
		for range maxLookups {
			(<-querying)(unknown)
		}
		lookUp(honest, unknown)
		lookUp(natsauth.TokenHash{4}, errors.New("no connection"))
		require.Empty(t, l.valid, "a revoked token is bounded like an unknown one")
	})
}
