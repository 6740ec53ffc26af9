-- Sends request lines of a file, METHOD TARGET each, drawn uniformly at random; PUTs carry `body_bytes` bytes,
-- which begin with a number, so that all of them differ.
-- Arguments: the file, body_bytes, the host, a seed.
local NUMBER = "%016d"
local lines, length, rest, host, sent = {}, 0, "", "127.0.0.1", 0

function init(args)
  host = args[3]
  math.randomseed(tonumber(args[4]))
  length = tonumber(args[2])
  local piece = {}
  for i = 1, length - #NUMBER:format(0) do piece[i] = string.char(math.random(0, 255)) end
  rest = table.concat(piece)
  for line in io.lines(args[1]) do lines[#lines + 1] = line end
end

function request()
  local line = lines[math.random(#lines)]
  if line:sub(1, 4) == "PUT " then
    sent = sent + 1
    return line .. " HTTP/1.1\r\nHost: " .. host .. "\r\nContent-Length: " .. length .. "\r\n\r\n"
      .. NUMBER:format(sent) .. rest
  end
  return line .. " HTTP/1.1\r\nHost: " .. host .. "\r\n\r\n"
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    "RESULT requests=%d micros=%d p50=%d p99=%d status=%d connect=%d read=%d write=%d timeout=%d\n",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.status, errors.connect, errors.read, errors.write, errors.timeout))
end
