package wire_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/wire"
)

const secret = "glrt-sesame"

func TestUnknownFieldsAreIgnored(t *testing.T) {
	t.Parallel()
	var r wire.JobRequest
	require.NoError(t, wire.Unmarshal([]byte(`{"token":"t","system_id":"s_1","last_update":"x\ny","new":{"a":[1]},
		"info":{"name":"gitlab-runner","features":{"cancelable":true,"unheard_of":"yes"},"labels":{}},
		"session":{"url":"https://10.0.0.1"}}`), &r))
	require.Equal(t, "s_1", r.SystemID)
	require.True(t, r.Info.Features.Cancelable)
}

func TestInvalidRequestsNameTheFieldAndNeverTheValue(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", wire.MaxText+1)
	for name, test := range map[string]struct {
		request wire.Request
		body    string
		want    string
	}{
		"no JSON":           {&wire.JobRequest{}, `{"token":"` + secret, "not valid JSON"},
		"two values":        {&wire.JobRequest{}, `{} {}`, "not valid JSON"},
		"a list":            {&wire.JobRequest{}, `["` + secret + `"]`, "not valid JSON"},
		"empty":             {&wire.JobRequest{}, ``, "not valid JSON"},
		"wrong type":        {&wire.JobRequest{}, `{"token":17}`, "token: must not be of the JSON type number"},
		"wrong inner type":  {&wire.JobRequest{}, `{"info":{"name":["` + secret + `"]}}`, "info.name: must not be"},
		"space in token":    {&wire.JobRequest{}, `{"token":"` + secret + ` x"}`, "token: must consist of visible ASCII"},
		"line end in token": {&wire.RunnerRequest{}, `{"token":"` + secret + `\r\nX: y"}`, "token: must consist of"},
		"long token":        {&wire.RunnerRequest{}, `{"token":"` + strings.Repeat("x", 4097) + `"}`, "token: is longer"},
		"control in system": {&wire.JobRequest{}, `{"system_id":"s\u0000"}`, "system_id: must consist of visible ASCII"},
		"long system":       {&wire.RunnerRequest{}, `{"system_id":"` + long + `"}`, "system_id: is longer than 64"},
		"control in info":   {&wire.JobRequest{}, `{"info":{"name":"a\u001bb"}}`, "info.name: must be valid UTF-8"},
		"C1 in info":        {&wire.JobRequest{}, `{"info":{"shell":"a\u009bb"}}`, "info.shell: must be valid UTF-8"},
		"invalid UTF-8":     {&wire.JobRequest{}, "{\"info\":{\"version\":\"\xff\"}}", "info.version: must be valid UTF-8"},
		"long info":         {&wire.JobRequest{}, `{"info":{"executor":"` + long + `"}}`, "info.executor: is longer"},
		"gpus":              {&wire.JobRequest{}, `{"info":{"config":{"gpus":"` + long + `"}}}`, "info.config.gpus"},
		"no registration":   {&wire.RegisterRequest{}, `{}`, "token: is missing"},
		"many tags": {
			&wire.RegisterRequest{}, `{"token":"` + secret + `","tag_list":"` + manyTags(51) + `"}`, "tag_list: has more",
		},
		"tag": {&wire.RegisterRequest{}, `{"token":"` + secret + `","tag_list":["a\u0007"]}`, "tag_list: must be valid"},
		"access": {
			&wire.RegisterRequest{}, `{"token":"` + secret + `","access_level":"x"}`, "access_level: must be not_protected",
		},
		"timeout": {
			&wire.RegisterRequest{}, `{"token":"` + secret + `","maximum_timeout":-1}`, "maximum_timeout: must be between",
		},
		"description": {
			&wire.RegisterRequest{}, `{"token":"t","description":"` + strings.Repeat("x", 1025) + `"}`, "description: is longer",
		},
		"no group": {&wire.CreateRunnerRequest{}, `{"runner_type":"group_type"}`, "group_id: is missing"},
		"project": {
			&wire.CreateRunnerRequest{}, `{"runner_type":"instance_type","project_id":7}`, "project_id: is not possible",
		},
		"user runner type": {&wire.CreateRunnerRequest{}, `{"runner_type":"x"}`, "runner_type: must be"},
		"user runner note": {
			&wire.CreateRunnerRequest{}, `{"runner_type":"instance_type","maintenance_note":"\n"}`, "maintenance_note: must be",
		},
		"state":       {&wire.UpdateRequest{}, `{"token":"` + secret + `","state":"canceled"}`, "state: must be running"},
		"update info": {&wire.UpdateRequest{}, `{"state":"running","info":{"name":"\n"}}`, "info.name"},
		"reason":      {&wire.UpdateRequest{}, `{"state":"failed","failure_reason":"a\tb"}`, "failure_reason: must be valid"},
		"size":        {&wire.UpdateRequest{}, `{"state":"failed","output":{"bytesize":-1}}`, "output.bytesize: is not"},
		"checksum":    {&wire.UpdateRequest{}, `{"state":"failed","checksum":"md5:` + secret + `"}`, "checksum: must be"},
		"upper case":  {&wire.UpdateRequest{}, `{"state":"failed","checksum":"crc32:0000000A"}`, "checksum: must be"},
		"two checksums": {
			&wire.UpdateRequest{},
			`{"state":"failed","checksum":"crc32:0000000a","output":{"checksum":"crc32:0000000b"}}`, "output.checksum: differs",
		},
		"exit code": {&wire.UpdateRequest{}, `{"state":"failed","exit_code":1e99}`, "exit_code: must not be"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := wire.Unmarshal([]byte(test.body), test.request)
			require.True(t, fault.Is(err, errcode.InvalidArgument), "%v", err)
			require.ErrorContains(t, err, test.want)
			require.NotContains(t, err.Error(), "sesame")
		})
	}
}

func manyTags(n int) string {
	tags := make([]string, n)
	for i := range tags {
		tags[i] = "t" + strings.Repeat("x", i)
	}
	return strings.Join(tags, ",")
}

func TestDecodeRefusesLargeBodies(t *testing.T) {
	t.Parallel()
	decode := func(size int) error {
		body := `{"token":"` + strings.Repeat(" ", size-len(`{"token":""}`)) + `"}`
		require.Len(t, body, size)
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
		return wire.Decode(httptest.NewRecorder(), request, &wire.JobRequest{})
	}
	require.True(t, fault.Is(decode(wire.MaxBody), errcode.InvalidArgument))
	err := decode(wire.MaxBody + 1)
	require.True(t, fault.Is(err, errcode.PayloadTooLarge))
	require.ErrorContains(t, err, "32768 bytes")
	require.True(t, fault.Is(wire.Unmarshal(make([]byte, wire.MaxBody+1), &wire.JobRequest{}), errcode.PayloadTooLarge))
}

func TestTagsAreTextOrList(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]wire.Tags{
		`{"tag_list":"linux, arm,,linux "}`: {"linux", "arm"},
		`{"tag_list":["linux"," arm",""]}`:  {"linux", "arm"},
		`{"tag_list":""}`:                   nil,
		`{"tag_list":null}`:                 nil,
		`{}`:                                nil,
	} {
		var r wire.RegisterRequest
		require.NoError(t, json.Unmarshal([]byte(body), &r))
		require.Equal(t, want, r.TagList, body)
	}
	raw, err := json.Marshal(wire.Tags{"linux", "arm"})
	require.NoError(t, err)
	require.JSONEq(t, `"linux,arm"`, string(raw))
	require.Error(t, json.Unmarshal([]byte(`{"tag_list":7}`), &wire.RegisterRequest{}))
}

func TestTraceOfUpdate(t *testing.T) {
	t.Parallel()
	for body, want := range map[string][2]int64{
		`{"state":"success","checksum":"crc32:6673f471","output":{"checksum":"crc32:6673f471","bytesize":1955}}`: {
			0x6673f471, 1955,
		},
		`{"state":"success","output":{"checksum":"crc32:00000000","bytesize":0}}`: {0, 0},
		`{"state":"success","checksum":"crc32:0000000a"}`:                         {10, -1},
		`{"state":"success"}`: {-1, -1},
	} {
		var r wire.UpdateRequest
		require.NoError(t, wire.Unmarshal([]byte(body), &r))
		sum, size := r.Trace()
		got := [2]int64{-1, -1}
		if sum != nil {
			got[0] = int64(*sum)
		}
		if size != nil {
			got[1] = *size
		}
		require.Equal(t, want, got, body)
	}
}

// FuzzUnmarshal decodes anything as each request. What is accepted obeys the limits, and errors are those of callers.
func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(`{"token":"t","system_id":"s_1","info":{"name":"x","features":{"masking":true}},"last_update":"a/b/1"}`))
	f.Add([]byte(`{"token":"t","state":"failed","checksum":"crc32:0000000a","output":{"bytesize":3},"exit_code":7}`))
	f.Add([]byte(`{"token":"t","tag_list":"a,b","run_untagged":false,"access_level":"ref_protected"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, r := range []wire.Request{
			&wire.JobRequest{}, &wire.RunnerRequest{}, &wire.RegisterRequest{}, &wire.UpdateRequest{},
			&wire.CreateRunnerRequest{},
		} {
			if err := wire.Unmarshal(raw, r); err != nil {
				require.Less(t, fault.HTTPStatus(fault.CodeOf(err)), http.StatusInternalServerError)
				continue
			}
			switch r := r.(type) {
			case *wire.JobRequest:
				require.LessOrEqual(t, len(r.SystemID), wire.MaxSystemID)
				require.NotContains(t, r.Token+r.SystemID+r.Info.Name, "\n")
			case *wire.RegisterRequest:
				require.LessOrEqual(t, len(r.TagList), wire.MaxTags)
				require.NotEmpty(t, r.Token)
			case *wire.UpdateRequest:
				r.Trace()
			}
			again, err := json.Marshal(r)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(again, r))
		}
	})
}
