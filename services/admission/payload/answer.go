package payload

import (
	"bytes"
	"io"
	"mime"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Answer is what a controller decides about a job.
type Answer struct {
	JobID    int64
	Accepted bool
	// AddTags and RemoveTags change the tags of an accepted job. They have no tag in common.
	AddTags, RemoveTags []string
	// AcceptRunners are the only runners that may take an accepted job; empty for no restriction.
	AcceptRunners []int64
	// RejectRunners may not take an accepted job. The two lists have no runner in common.
	RejectRunners []int64
	// Reason is for people. It has no control characters.
	Reason string
}

// Changes reports whether the answer changes an accepted job.
func (a Answer) Changes() bool {
	return len(a.AddTags)+len(a.RemoveTags)+len(a.AcceptRunners)+len(a.RejectRunners) > 0
}

// ReadAnswer reads the answer of a controller about a job. It reads at most [MaxBytes]. Every error is an
// *[AnswerError].
func ReadAnswer(contentType string, body io.Reader, jobID int64) (Answer, error) {
	if media, _, err := mime.ParseMediaType(contentType); err != nil ||
		media != "application/json" && (!strings.HasPrefix(media, "application/") || !strings.HasSuffix(media, "+json")) {
		return Answer{}, wrong(CodeContentType, "the content type must be application/json, not %s", shorten(contentType))
	}
	document, err := io.ReadAll(io.LimitReader(body, MaxBytes+1))
	if err != nil {
		return Answer{}, wrong(CodeUnreadable, "the answer could not be read to its end: %v", err)
	}
	if len(document) > MaxBytes {
		return Answer{}, wrong(CodeTooLarge, "the answer has more than %d bytes", MaxBytes)
	}
	return decodeAnswer(document, jobID)
}

func decodeAnswer(document []byte, jobID int64) (Answer, error) {
	f, err := single(document)
	if err != nil {
		return Answer{}, err
	}
	id, err := f.id()
	if err != nil {
		return Answer{}, err
	}
	if id != jobID {
		return Answer{}, wrong(CodeOtherJob, "the answer is about job %d, but the request was about job %d", id, jobID)
	}
	a := Answer{JobID: id}
	if a.Accepted, err = f.accepted(); err != nil {
		return Answer{}, err
	}
	if !a.Accepted {
		// A rejection stays one, whatever else it has.
		if raw, ok := f["reason"]; ok && raw.Kind() == jsontext.KindString {
			a.Reason = Reason(text(raw))
		}
		return a, nil
	}
	if a.Reason, err = f.reason(); err != nil {
		return Answer{}, err
	}
	if err := f.readTags(&a); err != nil {
		return Answer{}, err
	}
	if err := f.readRunners(&a); err != nil {
		return Answer{}, err
	}
	return a, nil
}

func (f fields) accepted() (bool, error) {
	raw, ok := f["admission"]
	if !ok {
		return false, wrong(CodeMissing, "admission is missing: it must be accepted or rejected")
	}
	if raw.Kind() != jsontext.KindString {
		return false, wrong(CodeWrongType, "admission must be a text, not %s", kind(raw))
	}
	switch verdict := text(raw); verdict {
	case "accepted":
		return true, nil
	case "rejected", "denied":
		return false, nil
	default:
		return false, wrong(CodeVerdict, "admission must be accepted or rejected, not %s", shorten(verdict))
	}
}

func (f fields) reason() (string, error) {
	raw, ok := f["reason"]
	if !ok {
		return "", nil
	}
	if raw.Kind() != jsontext.KindString {
		return "", wrong(CodeWrongType, "reason must be a text, not %s", kind(raw))
	}
	return Reason(text(raw)), nil
}

// Reason returns a reason as it is kept: without control characters, and cut to [MaxReasonCharacters].
func Reason(s string) string {
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s))
	if utf8.RuneCountInString(s) > MaxReasonCharacters {
		s = string([]rune(s)[:MaxReasonCharacters-1]) + "…"
	}
	return s
}

func (f fields) readTags(a *Answer) error {
	raw, ok := f["tags"]
	if !ok {
		return nil
	}
	members, err := object("tags", raw)
	if err != nil {
		return err
	}
	if a.AddTags, err = members.synonym("add", "additions"); err != nil {
		return err
	}
	if a.RemoveTags, err = members.synonym("remove", "removals"); err != nil {
		return err
	}
	for _, tag := range a.AddTags {
		if slices.Contains(a.RemoveTags, tag) {
			return wrong(CodeContradiction, "the tag %s is both added and removed", shorten(tag))
		}
	}
	return nil
}

// synonym returns the tags of the one of two keys that is there.
func (f fields) synonym(key, other string) ([]string, error) {
	_, hasKey := f[key]
	_, hasOther := f[other]
	if hasKey && hasOther {
		return nil, wrong(CodeContradiction, "tags has both %s and %s, which mean the same: send %s", key, other, key)
	}
	if hasOther {
		key = other
	}
	return f.tags(key, "tags."+key)
}

func (f fields) readRunners(a *Answer) error {
	raw, ok := f["runners"]
	if !ok {
		return nil
	}
	members, err := object("runners", raw)
	if err != nil {
		return err
	}
	if a.AcceptRunners, err = members.runners("accepted_ids"); err != nil {
		return err
	}
	if a.RejectRunners, err = members.runners("rejected_ids"); err != nil {
		return err
	}
	for _, id := range a.AcceptRunners {
		if slices.Contains(a.RejectRunners, id) {
			return wrong(CodeContradiction, "runner %d is both accepted and rejected", id)
		}
	}
	return nil
}

func (f fields) runners(key string) ([]int64, error) {
	what := "runners." + key
	list, err := f.texts(key, what, MaxRunners)
	if err != nil {
		return nil, err
	}
	ids := make([]int64, len(list))
	for i, item := range list {
		id, err := strconv.ParseInt(item, 10, 64)
		if err != nil || id <= 0 || strconv.FormatInt(id, 10) != item {
			return nil, wrong(CodeRunner, "item %d of %s is not the id of a runner: %s", i+1, what, shorten(item))
		}
		ids[i] = id
	}
	return distinct(ids), nil
}

// EncodeAnswer returns an answer as a controller sends it. Equal answers have equal bytes. The tags and runners of a
// rejection are left out.
func EncodeAnswer(a Answer) []byte {
	var b bytes.Buffer
	b.WriteString(`[{"id":`)
	b.WriteString(strconv.FormatInt(a.JobID, 10))
	if !a.Accepted {
		b.WriteString(`,"admission":"rejected"`)
	} else {
		b.WriteString(`,"admission":"accepted"`)
		a.writeChanges(&b)
	}
	if a.Reason != "" {
		b.WriteString(`,"reason":`)
		b.Write(quote(a.Reason))
	}
	b.WriteString(`}]`)
	return b.Bytes()
}

func (a Answer) writeChanges(b *bytes.Buffer) {
	if len(a.AddTags)+len(a.RemoveTags) > 0 {
		b.WriteString(`,"tags":{"add":`)
		writeTexts(b, a.AddTags)
		b.WriteString(`,"remove":`)
		writeTexts(b, a.RemoveTags)
		b.WriteByte('}')
	}
	if len(a.AcceptRunners)+len(a.RejectRunners) > 0 {
		b.WriteString(`,"runners":{"accepted_ids":`)
		writeTexts(b, idTexts(a.AcceptRunners))
		b.WriteString(`,"rejected_ids":`)
		writeTexts(b, idTexts(a.RejectRunners))
		b.WriteByte('}')
	}
}

func idTexts(ids []int64) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = strconv.FormatInt(id, 10)
	}
	return out
}
