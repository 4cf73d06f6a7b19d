package seal_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/seal"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) {
	leaktest.Main(m)
}

func key(tb testing.TB) seal.Key {
	tb.Helper()

	k, err := seal.GenerateKey()
	require.NoError(tb, err)

	return k
}

func TestOnlyTheRecipientOpensWhatTheSenderSealed(t *testing.T) {
	t.Parallel()

	state, agent, other := key(t), key(t), key(t)
	plaintext := []byte("hunter2")

	box, err := seal.Seal(plaintext, agent.Public(), state)
	require.NoError(t, err)
	require.NotContains(t, string(box), "hunter2")
	require.Len(t, box, len(plaintext)+44)

	again, err := seal.Seal(plaintext, agent.Public(), state)
	require.NoError(t, err)
	require.NotEqual(t, box, again)

	opened, err := seal.Open(box, state.Public(), agent)
	require.NoError(t, err)
	require.Equal(t, plaintext, opened)

	_, err = seal.Open(box, state.Public(), other)
	require.ErrorIs(t, err, seal.ErrNotOpened, "another recipient")
	_, err = seal.Open(box, other.Public(), agent)
	require.ErrorIs(t, err, seal.ErrNotOpened, "another sender")

	for i := range box {
		changed := bytes.Clone(box)
		changed[i] ^= 1
		_, err = seal.Open(changed, state.Public(), agent)
		require.ErrorIs(t, err, seal.ErrNotOpened, "byte %d changed", i)

		_, err = seal.Open(box[:i], state.Public(), agent)
		require.ErrorIs(t, err, seal.ErrNotOpened, "cut at %d", i)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()

	k := key(t)
	seed, err := k.Seed()
	require.NoError(t, err)

	same, err := seal.ParseKey(seed.Reveal())
	require.NoError(t, err)
	require.Equal(t, k.Public(), same.Public())
	require.NotContains(t, fmt.Sprintf("%v %+v %#v %s", k, k, k, k), seed.Reveal())
	require.Equal(t, nkeys.PrefixByteCurve, nkeys.Prefix(k.Public()))

	user, err := nkeys.CreateUser()
	require.NoError(t, err)
	userSeed, err := user.Seed()
	require.NoError(t, err)
	userPublic, err := user.PublicKey()
	require.NoError(t, err)

	for _, bad := range []string{"", "SX", k.Public(), string(userSeed)} {
		_, err := seal.ParseKey(bad)
		require.ErrorIs(t, err, seal.ErrInvalidKey)

		if len(bad) > 2 {
			require.NotContains(t, err.Error(), bad)
		}
	}

	for _, public := range []string{"", userPublic, seed.Reveal()} {
		_, err = seal.Seal(nil, public, k)
		require.ErrorIs(t, err, seal.ErrInvalidKey)
		_, err = seal.Open(nil, public, k)
		require.ErrorIs(t, err, seal.ErrInvalidKey)
	}

	_, err = seal.Seal(nil, k.Public(), seal.Key{})
	require.ErrorIs(t, err, seal.ErrInvalidKey)
	_, err = seal.Open(nil, k.Public(), seal.Key{})
	require.ErrorIs(t, err, seal.ErrInvalidKey)
	_, err = seal.Key{}.Seed()
	require.ErrorIs(t, err, seal.ErrInvalidKey)
}

func TestValuesAreBoundToTheirLabel(t *testing.T) {
	t.Parallel()

	state, agent := key(t), key(t)
	values := seal.Values{"password": seal.NewValue("hunter2"), "": seal.NewValue(""), "é": seal.NewValue("\x00\xff")}

	box, err := values.Seal("w/1", agent.Public(), state)
	require.NoError(t, err)

	opened, err := seal.OpenValues(box, "w/1", state.Public(), agent)
	require.NoError(t, err)
	require.Equal(t, values, opened)

	_, err = seal.OpenValues(box, "w/2", state.Public(), agent)
	require.ErrorIs(t, err, seal.ErrWrongLabel)
	_, err = seal.OpenValues(box, "w/1", state.Public(), state)
	require.ErrorIs(t, err, seal.ErrNotOpened)

	for _, foreign := range []string{
		"", "hunter2", "\x00\x00\x00\x00\x00\x00\x00\x03w/1x", "\xff\xff\xff\xff\xff\xff\xff\xff",
	} {
		box, err := seal.Seal([]byte(foreign), agent.Public(), state)
		require.NoError(t, err)
		_, err = seal.OpenValues(box, "w/1", state.Public(), agent)
		require.ErrorIs(t, err, seal.ErrNotOpened)
	}
}

func TestDigest(t *testing.T) {
	t.Parallel()

	k := seal.GenerateDigestKey()
	value := seal.NewValue
	different := []seal.Values{
		nil,
		{"": value("")},
		{"a": value("")},
		{"": value("a")},
		{"a": value("b")},
		{"ab": value("")},
		{"a": value("b"), "c": value("d")},
		{"a": value("bc"), "": value("d")},
		{"a": value("d"), "c": value("b")},
	}
	seen := make(map[string]int)

	for i, values := range different {
		digest := seal.Digest(k, values)
		require.Len(t, digest, 64)
		require.Equal(t, digest, seal.Digest(k, values))
		require.NotEqual(t, digest, seal.Digest(seal.GenerateDigestKey(), values), "another key gives another digest")
		require.NotContains(t, seen, digest, "values %d", i)
		seen[digest] = i
	}

	require.Equal(t, seal.Digest(k, nil), seal.Digest(k, seal.Values{}))

	same, err := seal.ParseDigestKey(k.Encode().Reveal())
	require.NoError(t, err)
	require.Equal(t, seal.Digest(k, different[4]), seal.Digest(same, different[4]))
	require.NotContains(t, fmt.Sprintf("%v %+v %#v", k, k, k), k.Encode().Reveal())

	for _, bad := range []string{"", "00", k.Encode().Reveal() + "00", "x" + k.Encode().Reveal()[1:]} {
		_, err := seal.ParseDigestKey(bad)
		require.ErrorIs(t, err, seal.ErrInvalidDigestKey)
	}

	require.Panics(t, func() { seal.Digest(seal.DigestKey{}, nil) })
}

// TestDigestIsStable pins the digest of one key and map: manifests carry it, so it may not change
// between releases.
func TestDigestIsStable(t *testing.T) {
	t.Parallel()

	k, err := seal.ParseDigestKey("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")
	require.NoError(t, err)
	require.Equal(
		t, "d9b894e305c356a9bc65b5e18c62aad8ae905e0706bfe3d5a31591a1bd1e35bd",
		seal.Digest(k, seal.Values{"user": seal.NewValue("u"), "password": seal.NewValue("hunter2")}),
	)
}

func TestValuesAreNotPrinted(t *testing.T) {
	t.Parallel()

	const secret = "hunter2"

	v := seal.NewValue(secret)
	values := seal.Values{"password": v}
	holder := struct {
		V  seal.Value
		P  *seal.Value
		Vs seal.Values
	}{v, &v, values}

	var out bytes.Buffer

	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T"} {
		fmt.Fprintf(&out, verb, v)
		fmt.Fprintf(&out, verb, &v)
		fmt.Fprintf(&out, verb, values)
		fmt.Fprintf(&out, verb, holder)
	}

	for _, logger := range []*slog.Logger{
		slog.New(slog.NewJSONHandler(&out, nil)), slog.New(slog.NewTextHandler(&out, nil)),
	} {
		for _, value := range []any{v, &v, values, holder} {
			logger.Info("x", slog.Any(logkey.Key, value))
		}
	}

	for _, encode := range []func(any) ([]byte, error){json.Marshal, yaml.Marshal} {
		encoded, err := encode(holder)
		require.NoError(t, err)
		out.Write(encoded)
	}

	require.Contains(t, out.String(), "[secret]")
	require.NotContains(t, out.String(), secret)
	require.NotContains(t, out.String(), "68756e74657232", "in hexadecimal")
	require.Equal(t, secret, v.Reveal())
}

func FuzzSealValues(f *testing.F) {
	state, agent := key(f), key(f)

	f.Add("label", "a", "b", "c", "d")
	f.Add("", "", "", "\x00", "\xff")
	f.Fuzz(func(t *testing.T, label, name, text, name2, text2 string) {
		values := seal.Values{name: seal.NewValue(text), name2: seal.NewValue(text2)}

		box, err := values.Seal(label, agent.Public(), state)
		require.NoError(t, err)
		opened, err := seal.OpenValues(box, label, state.Public(), agent)
		require.NoError(t, err)
		require.Equal(t, values, opened)
	})
}

// FuzzOpenValues opens boxes with any plaintext: what opens as values seals to the same plaintext
// again.
func FuzzOpenValues(f *testing.F) {
	state, agent := key(f), key(f)

	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00\x01l\x00\x00\x00\x00\x00\x00\x00\x01a\x00\x00\x00\x00\x00\x00\x00\x01b"))
	f.Fuzz(func(t *testing.T, plaintext []byte) {
		box, err := seal.Seal(plaintext, agent.Public(), state)
		require.NoError(t, err)

		values, err := seal.OpenValues(box, "l", state.Public(), agent)
		if err != nil {
			return
		}

		again, err := values.Seal("l", agent.Public(), state)
		require.NoError(t, err)
		reopened, err := seal.Open(again, state.Public(), agent)
		require.NoError(t, err)
		require.Equal(t, plaintext, reopened)
	})
}
