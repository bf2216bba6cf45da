-- Calls, closures, strings, tables, sorting, coroutines: typical work of a Lua program. Prints a checksum.
--
--   lua bench.lua [ROUNDS]     4
local rounds = tonumber(arg[1]) or 4

local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end

local function queens(n)
  local columns, up, down, found = {}, {}, {}, 0
  local function place(row)
    if row > n then found = found + 1 return end
    for column = 1, n do
      if not (columns[column] or up[row + column] or down[row - column]) then
        columns[column], up[row + column], down[row - column] = true, true, true
        place(row + 1)
        columns[column], up[row + column], down[row - column] = nil, nil, nil
      end
    end
  end
  place(1)
  return found
end

local function words(n)
  local seen, parts = {}, {}
  for at = 1, n do parts[at] = string.format("w%d", at * 7919 % 1009) end
  for word in table.concat(parts, " "):gmatch("%a%d+") do seen[word] = (seen[word] or 0) + 1 end
  local names = {}
  for name in pairs(seen) do names[#names + 1] = name end
  table.sort(names, function(a, b) return seen[a] == seen[b] and a < b or seen[a] > seen[b] end)
  return #names + #(names[1]:rep(3):gsub("%d", "%0-"))
end

local function passed(n)
  local ring, sum = {}, 0
  for at = 1, 10 do
    ring[at] = coroutine.wrap(function(value) while true do value = coroutine.yield(value + at) end end)
  end
  for at = 1, n do sum = ring[at % 10 + 1](sum) % 65521 end
  return sum
end

-- Nested C calls: a comparison in Lua, called by table.sort, called by Lua, and so on.
local function nested(depth)
  if depth == 0 then return 1 end
  local sum, values = 0, { 3, 1, 2 }
  table.sort(values, function(a, b) if sum == 0 then sum = nested(depth - 1) + 1 end return a < b end)
  return sum + values[1]
end

local sum = 0
for _ = 1, rounds do
  sum = sum + fib(27) + queens(8) + words(60000) + passed(300000) + nested(150)
end
print(sum)
