package trace

// Abandon ends a trace without its runner, and without the masked values: what is held is stored as stars. A trace that
// has ended stays as it is.
func (s State) Abandon() (State, Write) {
	if s.Ended {
		return s, Write{}
	}
	rest := make([]byte, s.Held.Length)
	stars(rest)
	return s.end(rest)
}

// AppendLast ends a trace with data that exceeds the limit: with the part of data that is within the limit, and a note
// for people. [State.Append] then returns [ErrTooLarge]. Errors, after which nothing has changed: *[RangeError],
// [ErrEnded], [ErrMask], and [ErrTooLarge] for a trace that has ended in this way.
func (s State) AppendLast(mask *Mask, offset int64, data []byte, limit int64, note string) (State, []Write, error) {
	room := min(max(limit-s.Size, 0), int64(len(data)))
	next, within, err := s.Append(mask, offset, data[:room], max(limit, s.Size))
	if err != nil {
		return s, nil, err
	}
	next, rest, _, err := next.Finish(mask, Report{})
	if err != nil {
		return s, nil, err
	}
	last := Write{Generation: next.Final.Number, Offset: next.Final.Size, Data: []byte(note)}
	next.Final.Size += int64(len(note))
	next.Full = true
	return next, []Write{within, rest, last}, nil
}
